"""One exchange whose client is not there to be told."""

import asyncio
import gc
from typing import Any

import pytest

from serving.access.key_ring import KeyRing
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.request_body import BodyReader
from serving.server.gateway.http.request_work import ContextSize
from serving.server.gateway.ingress_account import IngressAccount
from tests.serving.server.gateway.grpc.served_grpc import CAPACITY, Ready

pytestmark = pytest.mark.long

SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}


def test_a_client_that_cannot_be_told_of_its_time_leaves_no_error_to_nobody() -> None:
    unhandled: list[dict[str, Any]] = []
    bodies = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def receive() -> dict[str, Any]:
        if bodies:
            return bodies.pop()
        await asyncio.sleep(60.0)
        raise AssertionError("the request's time is over before")

    async def send(message: Any) -> None:
        raise OSError("the connection is gone")

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: unhandled.append(context)
        )
        admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY)
        handle = HttpGateway(
            app,
            keys=KeyRing(),
            admission=admission,
            readiness=Ready(),  # type: ignore[arg-type]
            bodies=BodyReader(bytes_max=100, account=IngressAccount()),
            context=ContextSize(100),
            request_wall_s_max=0.02,
        )
        await handle(dict(SCOPE), receive, send)
        assert await admission.empty(1.0)
        gc.collect()
        await asyncio.sleep(0)

    gc.collect()  # what tests before have left is not of this loop
    asyncio.run(live())
    assert unhandled == []
