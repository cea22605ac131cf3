"""A gRPC gateway on the small AsyncLLM, on a free port, with the published stubs."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc

from serving.access.key_ring import KeyRing
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.refusal import Refused
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.admitted_generate import admit_generation
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.grpc.grpc_server import EngineGrpcServer
from serving.server.gateway.ingress_account import IngressAccount
from tests.e2e.server_process import free_port
from tests.serving.server.gateway.small_async_llm import SEATS, SmallCore, small_async_llm

CAPACITY = Capacity(seats=SEATS, kv_tokens=60 * 16, prefill_tokens_per_step=64)


class Ready:
    """A readiness set by the test."""

    def __init__(self) -> None:
        self.dead: str | None = None
        self.busy: str | None = None
        self.refused: Refused | None = None
        self.failed: Refused | None = None

    def not_alive(self) -> str | None:
        return self.dead

    async def not_ready(self) -> str | None:
        return self.dead or self.busy

    async def refusal(self) -> Refused | None:
        return self.refused

    def failure(self) -> Refused | None:
        return self.failed


@dataclass(frozen=True, kw_only=True)
class ServedGrpc:
    engine: Any
    core: SmallCore
    admission: AdmissionController
    ready: Ready
    server: EngineGrpcServer
    server_port: int
    channel: grpc.aio.Channel
    stub: Any

    async def is_empty(self) -> None:
        """Wait until no request is left in the gateway, the engine or its KV pools."""
        await self.core.quiet()
        assert await self.admission.empty(5.0)
        assert self.admission.state().in_flight == 0
        assert not self.engine.output_processor.request_states


@asynccontextmanager
async def served_grpc_server(
    *,
    ranks: int = 1,
    step_s: float = 0.0,
    keys: KeyRing | None = None,
    limits: AdmissionLimits | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Iterable[tuple[str, Any]] = (),
    ingress: IngressAccount | None = None,
    **settings: Any,
) -> AsyncIterator[ServedGrpc]:
    """Serve until the block ends; `settings` are those of GatewaySettings."""
    given = GatewaySettings(grpc_port=free_port(), limits=limits or AdmissionLimits(), **settings)
    async with AsyncExitStack() as held:
        engine, core = await held.enter_async_context(small_async_llm(ranks, step_s=step_s))
        admission, ready = AdmissionController(given.limits, lambda: CAPACITY), Ready()
        admit_generation(engine, admission)
        server = EngineGrpcServer(
            engine,
            given,
            admission=admission,
            keys=keys or KeyRing(),
            readiness=ready,
            ingress=ingress or IngressAccount(),
        )
        await server.start()
        held.push_async_callback(server.stop)
        address = f"127.0.0.1:{given.grpc_port}"
        if credentials is None:
            channel = grpc.aio.insecure_channel(address, options=list(options))
        else:
            channel = grpc.aio.secure_channel(address, credentials, options=list(options))
        await held.enter_async_context(channel)
        yield ServedGrpc(
            engine=engine,
            core=core,
            admission=admission,
            ready=ready,
            server=server,
            server_port=given.grpc_port or 0,
            channel=channel,
            stub=pb_grpc.VllmEngineStub(channel),
        )


def asking(
    request_id: str = "r",
    tokens: Iterable[int] = (5, 6, 7),
    *,
    stream: bool = True,
    max_tokens: int = 4,
    **params: Any,
) -> pb.GenerateRequest:
    """A request that gets all its tokens."""
    return pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=tokens),
        sampling_params=pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True, **params),
        stream=stream,
    )


async def told(call: Any) -> list[Any]:
    answers = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A call's failure, with google.rpc's details by type name."""

    code: grpc.StatusCode
    message: str
    details: dict[str, Any]

    @property
    def reason(self) -> str:
        info = self.details["ErrorInfo"]
        assert info.domain == "ultraserve"
        return str(info.reason)


async def failure(call: Any) -> Failure:
    """The failure of a unary or streamed call; asserts that it fails, with details."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (told(call) if hasattr(call, "read") else call)
    error = raised.value
    status: status_pb2.Status | None = await rpc_status.aio.from_call(call)
    assert status is not None, f"no details: {error.code()} {error.details()}"
    found = {}
    for packed in status.details:
        kind = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])
        found[kind.DESCRIPTOR.name] = kind.FromString(packed.value)
    return Failure(code=error.code(), message=error.details() or "", details=found)
