"""The gRPC gateway: the published engine service, health and reflection, on one port.

It runs in the API process's loop, with the options of vLLM's gRPC launcher and limits of messages,
calls and connections. gRPC listens on a socket that only this user reaches; our port ends TLS, and
has a gate at which calls wait for their turn.

The published servicer of `vllm.grpc.engine.VllmEngine` takes an engine core for one rank. Here one
core schedules all ranks, each with its own seats and KV pool, so figures of room are multiplied.
Fields of the present state, which it leaves empty, are filled in.
"""

import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]
from smg_grpc_proto import vllm_engine_pb2_grpc  # type: ignore[import-untyped]
from smg_grpc_servicer.vllm.servicer import VllmEngineServicer  # type: ignore[import-untyped]

from serving.access.key_ring import KeyRing
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_port import GrpcPort, PortAddress
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.gateway.grpc.connection_options import HANDSHAKE_WALL_S, connection_options
from serving.server.gateway.grpc.grpc_guard import CALLS_MAX, SLACK_BYTES, CallLimits, GrpcGuard
from serving.server.gateway.grpc.grpc_health import READY, WATCHERS_MAX, GrpcHealth
from serving.server.gateway.grpc.message_turns import STRANGER_CALLS_MAX
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.readiness import Readiness
from serving.settings import ClockSetting, Settings

_SERVER_TYPE: Final = "vllm-grpc"
"""The contract's word for a vLLM server in Python."""

_INT32_MAX: Final = 2**31 - 1


class EngineServicer(VllmEngineServicer):  # type: ignore[misc]
    """The published servicer of `engine`, vLLM's AsyncLLM."""

    def __init__(
        self,
        engine: Any,
        *,
        admission: AdmissionController,
        readiness: Readiness,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(engine, clock())
        if not engine.log_requests:  # as vLLM's HTTP app has it; a line takes 0.07 ms
            logging.getLogger(VllmEngineServicer.__module__).setLevel(logging.WARNING)
        if self._warmup is not None:  # nothing here is compiled that a first request would meet
            self._warmup.cancel()
        self._admission = admission
        self._readiness = readiness
        self._clock = clock
        settings = Settings.from_additional_config(engine.vllm_config.additional_config)
        self._ranks = settings.ranks
        self._last_request_s = self.start_time

    async def Generate(self, request: Any, context: Any) -> Any:
        """Answer as published; note the time."""
        self._last_request_s = self._clock()
        async with aclosing(super().Generate(request, context)) as answers:
            async for answer in answers:
                yield answer

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Readiness, by which a gateway routes requests before they fail."""
        answer = await super().HealthCheck(request, context)
        if answer.healthy and (why := await self._readiness.not_ready()) is not None:
            answer.healthy, answer.message = False, why
        return answer

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """The server's state, with the seats of all ranks."""
        info = await super().GetServerInfo(request, context)
        info.max_num_seqs *= self._ranks
        info.active_requests = self._admission.in_flight
        info.is_paused = self._admission.closed is not None
        info.last_receive_timestamp = self._last_request_s
        info.uptime_seconds = self._clock() - self.start_time
        info.server_type = _SERVER_TYPE
        info.shm_namespace_id = ""  # nothing is read from shared memory here
        return info

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """One entry, as one engine is one worker: its queues, and the room of all ranks."""
        answer = await super().GetLoads(request, context)
        for load in answer.loads:
            tokens = min(load.max_total_num_tokens * self._ranks, _INT32_MAX)
            load.max_total_num_tokens = tokens
            load.num_used_tokens = round(load.token_usage * tokens)
            load.max_running_requests *= self._ranks
        return answer


# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

HEALTH: Final = "grpc.health.v1.Health"

STREAMS_MAX: Final = 1_024
"""Calls of one connection at a time, as clients are told: a gateway that wants more connects again.
Waiting at the gate is bounded apart."""

PORT_LIMITS: Final = PortLimits(
    connections=1_024, strangers=768, silent=256, head_wait_s=HANDSHAKE_WALL_S
)
"""At least a quarter is for clients with a key."""

_NAME: Final = "the gRPC port"

_STOP_GRACE_S: Final = 0.5
"""Time for the last messages of ended calls; health watches are cut off after it."""

_FOLLOWED_DILATION: Final = 10_000.0
"""Assumed, of `--clock auto`, whose pace is measured: far above any host's. It bounds how long a
connection may outlive its life while batch calls wait on it."""


class EngineGrpcServer:
    """The server on `settings.grpc_port`; `start` and `stop` in the engine's loop.

    `start` raises PortInUse, and ConfigError for unusable certificates.
    """

    def __init__(
        self,
        engine: Any,
        settings: GatewaySettings,
        *,
        admission: AdmissionController,
        keys: KeyRing,
        readiness: Readiness,
        ingress: IngressAccount,
    ) -> None:
        assert settings.grpc_port is not None
        limits = call_limits(engine, settings)
        self._health = GrpcHealth(readiness)
        inside = settings.limits.queue_requests + settings.limits.batch_queue_requests
        names = NamedConnections()
        guard = GrpcGuard(
            engine,
            admission=admission,
            keys=keys,
            limits=limits,
            readiness=readiness,
            ingress=ingress,
            names=names,
        )
        self._server = grpc.aio.server(
            interceptors=[guard],
            options=server_options(limits),
            # Who is refused by the gateway is told why; this is for calls that never say anything.
            maximum_concurrent_rpcs=inside + CALLS_MAX + WATCHERS_MAX + STRANGER_CALLS_MAX,
        )
        self._address = PortAddress(
            name=_NAME, host=settings.grpc_host, port=settings.grpc_port, field="grpc_port"
        )
        self._is_plain = settings.tls is None
        self._port = GrpcPort(
            self._server,
            self._address,
            names=names,
            tls=settings.tls,
            limits=PORT_LIMITS,
            hint="OpenAI's HTTP API is at --port",
        )
        # Its import reaches into vLLM's command line and logging: not where no such gateway is.
        from serving.server.gateway.grpc.grpc_server import EngineServicer

        servicer = EngineServicer(engine, admission=admission, readiness=readiness)
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((READY, HEALTH, reflection.SERVICE_NAME), self._server)

    async def start(self) -> None:
        """Listen."""
        await self._port.start()
        host, port = self._address.host, self._address.port
        shown = f"[{host}]" if ":" in host else host
        kind = "plain text" if self._is_plain else "TLS"
        logger.info("%s on %s:%d (%s)", READY, shown, port, kind)

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Stop: health reports it at once, calls have `grace_s`; idempotent."""
        await self._port.close()
        await self._health.stop()
        await self._port.stop(grace_s)


def server_options(limits: CallLimits) -> list[tuple[str, int]]:
    """Options of gRPC's core: those of vLLM's launcher, and our limits."""
    # A connection lives so long, and its calls as long as a request may be here: a call that never
    # sends its message has no other end. Clients connect again by themselves.
    return [
        ("grpc.max_send_message_length", -1),
        *connection_options(
            message_bytes_max=limits.message_bytes_max + SLACK_BYTES,
            streams_max=STREAMS_MAX,
            life_wall_s=limits.wall_s_max,
            grace_wall_s=limits.queue_wall_s_max + limits.wall_s_max,
        ),
    ]


def call_limits(engine: Any, settings: GatewaySettings) -> CallLimits:
    """Limits of each call; batch work waits emulated time, by the engine's clock."""
    return CallLimits(
        message_bytes_max=settings.body_bytes_max,
        wall_s_max=settings.request_wall_s_max,
        queue_wall_s_max=settings.limits.batch_wait_s * _dilation_max(engine),
        context_tokens=engine.model_config.max_model_len,
        exchanges_kv=engine.vllm_config.kv_transfer_config is not None,
    )


def _dilation_max(engine: Any) -> float:
    settings = Settings.from_additional_config(engine.vllm_config.additional_config)
    clock = ClockSetting.parse(settings.clock)
    return _FOLLOWED_DILATION if clock.dilation is None else clock.dilation
