"""The HTTP gateway before vLLM's own app and the small AsyncLLM, served by uvicorn."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import openai
import uvicorn
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from emulator.data import SMALL_MOE_DIR
from serving.access.key_ring import KeyRing
from serving.plugin.direct_streams import join_streams
from serving.plugin.response_model_version import begin_response, name_weights_in_responses
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.admitted_generate import admit_generation
from serving.server.gateway.http.asgi import App
from serving.server.gateway.http.bounded_protocol import HttpIngress, bound_connections
from serving.server.gateway.http.http_access import key_of
from serving.server.gateway.http.http_gateway import HttpGateway
from serving.server.gateway.http.http_refusals import missing_paths
from serving.server.gateway.http.open_api import describe_app
from serving.server.gateway.http.request_body import BodyReader
from serving.server.gateway.http.request_work import ContextSize
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits
from serving.server.gateway.readiness import Readiness
from tests.serving.server.gateway.small_async_llm import (
    SEATS,
    SmallCore,
    small_async_llm,
)

CAPACITY = Capacity(seats=SEATS, kv_tokens=60 * 16, prefill_tokens_per_step=64)
MODEL = "small-moe"


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    url: str
    app: Any
    gateway: HttpGateway
    engine: Any
    core: SmallCore
    admission: AdmissionController
    http: httpx.AsyncClient
    bodies: BodyReader
    readiness: Readiness

    def client(self, key: str = "none", **settings: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **settings)

    async def is_empty(self) -> None:
        """Wait until no request is left in the gateway, the engine or its KV pools."""
        await asyncio.wait_for(self.core.quiet(), 5.0)
        assert await self.admission.empty(5.0)
        assert self.admission.state().in_flight == 0
        assert not self.engine.output_processor.request_states
        assert self.bodies.account.keyed_bytes == 0


class Before:
    """A middleware where vLLM puts ours: inside its handler of uncaught exceptions."""

    passes_bodies = True
    made: ClassVar[list["Before"]] = []
    admission: App

    def __init__(self, app: App) -> None:
        self.app = app
        self.made.append(self)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin_response()
        await self.admission(scope, receive, send)


async def vllm_app(engine: Any) -> Any:
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(
        [
            "--model",
            str(SMALL_MOE_DIR),
            "--served-model-name",
            MODEL,
            "--middleware",
            f"{Before.__module__}.{Before.__qualname__}",
        ]
    )
    app = build_app(args, ("generate",), engine.model_config)
    app.state.server = SimpleNamespace(should_exit=False)
    await init_app_state(engine, app.state, args, ("generate",))
    return app


@asynccontextmanager
async def served(app: App, ingress: HttpIngress | None = None) -> AsyncIterator[str]:
    """Serve `app` on a free port; gives its address."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    config.load()
    if ingress is not None:
        bound_connections(config, ingress)
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task


@asynccontextmanager
async def http_server(
    *,
    step_s: float = 0.0,
    keys: KeyRing | None = None,
    limits: AdmissionLimits | None = None,
    body_bytes_max: int = 64 * 2**10,
    ingress_limits: IngressLimits | None = None,
    account: IngressAccount | None = None,
    request_wall_s_max: float = 60.0,
    direct: bool = True,
) -> AsyncIterator[HttpServer]:
    async with AsyncExitStack() as held:
        engine, core = await held.enter_async_context(small_async_llm(step_s=step_s))
        admission = AdmissionController(limits or AdmissionLimits(), lambda: CAPACITY)
        app = await vllm_app(engine)
        before = Before.made.pop()
        name_weights_in_responses(engine)
        if direct:
            join_streams(app.state)
        admit_generation(engine, admission)
        account = account or IngressAccount(ingress_limits)
        bodies = BodyReader(bytes_max=body_bytes_max, account=account)
        ring = keys or KeyRing()
        describe_app(app, version="1", needs_key=not ring.is_open)
        readiness = Readiness(
            engine,
            lambda: admission.closed,
            seats=lambda: SEATS * int(core.scheduler.ranks_up.sum()),
        )
        before.admission = gateway = HttpGateway(
            before.app,
            keys=ring,
            admission=admission,
            readiness=readiness,
            bodies=bodies,
            context=ContextSize.of(engine),
            request_wall_s_max=request_wall_s_max,
            missing=missing_paths(app.state),
        )
        url = await held.enter_async_context(
            served(app, HttpIngress(account, partial(key_of, ring)))
        )
        http = await held.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20.0))
        yield HttpServer(
            url=url,
            app=app,
            gateway=gateway,
            engine=engine,
            core=core,
            admission=admission,
            http=http,
            bodies=bodies,
            readiness=readiness,
        )
