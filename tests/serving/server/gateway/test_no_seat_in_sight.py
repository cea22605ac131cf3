"""Every seat has an answer that goes on and on: who comes then is told a finite time, by both
protocols.
"""

import asyncio
import json
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from serving.plugin.engine_shutdown import abort_requests
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.entry import Outcome
from tests.serving.server.gateway.grpc.served_grpc import (
    ServedGrpc,
    asking,
    failure,
    served_grpc_server,
)
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer, http_server

ENDLESS = 400
"""Tokens: at a step of STEP_S, four times as many seconds as are foreseen."""

STEP_S = 0.02
LIMITS = AdmissionLimits(ttft_target_s=1.0)
TOLD = "no seat is sure to come free within 2 s; 1 s are promised, of which 0.9 s may be expected"


def test_over_grpc() -> None:
    async def runs(at: ServedGrpc) -> None:
        running: list[Any] = []
        while True:
            call = at.stub.Generate(asking(f"r{len(running)}", max_tokens=ENDLESS))
            try:
                await call.read()
            except AioRpcError:
                break
            running.append(call)
            await asyncio.sleep(0.05)  # until its next token is counted
        told_of = await failure(at.stub.Generate(asking("late", max_tokens=ENDLESS)))
        for call in running:
            call.cancel()

        assert running
        assert told_of.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (told_of.reason, told_of.message) == ("TTFT_TARGET", TOLD)
        assert told_of.details["RetryInfo"].retry_delay.ToSeconds() >= 1
        await at.is_empty()

    async def check() -> None:
        async with served_grpc_server(limits=LIMITS, step_s=STEP_S) as at:
            await asyncio.wait_for(runs(at), 30.0)

    asyncio.run(check())


@pytest.mark.long
def test_over_http_and_what_the_server_aborts_in_the_end_has_not_finished() -> None:
    async def runs(server: HttpServer) -> None:
        body = {"model": MODEL, "prompt": "a", "max_tokens": ENDLESS, "ignore_eos": True}
        running: list[asyncio.Task[Any]] = []
        while True:
            asked = server.http.post("/v1/completions", json=body)
            running.append(asyncio.create_task(asked))
            await asyncio.sleep(0.1)
            if running[-1].done():
                break
        refused = running.pop().result()

        assert running
        assert refused.status_code == 429
        assert refused.json()["error"]["message"] == TOLD
        assert int(refused.headers["retry-after"]) >= 1

        assert await abort_requests(server.engine) == len(running)  # as a server's end does

        for answer in await asyncio.gather(*running):
            assert answer.status_code == 200
            assert json.loads(answer.content)["choices"][0]["finish_reason"] == "abort"
        await server.is_empty()
        (counts, _) = (each.left for each in server.admission.state().classes.values())
        assert counts[Outcome.ABORTED] == len(running)
        assert counts[Outcome.FINISHED] == 0

    async def check() -> None:
        async with http_server(limits=LIMITS, step_s=STEP_S) as server:
            await asyncio.wait_for(runs(server), 30.0)

    asyncio.run(check())
