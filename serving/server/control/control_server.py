"""The control port's services: guarded gRPC, and the console."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from emulator.errors import ConfigError
from serving.access.tls_files import TlsFiles
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_port import GrpcPort, PortAddress
from serving.server.connections.grpc_relay import NamedConnections
from serving.server.console.console_app import ConsoleApp
from serving.server.console.console_port import STOP_GRACE_S, ConsolePort
from serving.server.control.console_snapshots import ConsoleSnapshots
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_guard import (
    CALLS_MAX,
    HEALTH_CHECKS_MAX,
    HEALTH_WATCHES_MAX,
    MESSAGE_BYTES_MAX,
    STREAM_WALL_S_MAX,
    WATCHES_MAX,
    ControlGuard,
    GuardLimits,
    unnamed,
)
from serving.server.control.control_service import ControlService
from serving.server.control.engine_watch import EngineWatch
from serving.server.control.generic_service import SERVICE as DESCRIPTOR
from serving.server.control.generic_service import EngineAnswers, generic_service
from serving.server.control.json_calls import JsonCalls
from serving.server.control.last_replies import LastReplies
from serving.server.day_night.controller import DayNight
from serving.server.engine_call import ServedEngine
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.grpc.connection_options import connection_options
from serving.server.gateway.snapshot_poller import SnapshotPoller
from serving.telemetry.latency_window import Latencies

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

SERVICE: Final[str] = DESCRIPTOR.full_name

_HINT: Final = "the live page has a port of its own, and `ultraserve console` prints its address"

_STREAMS_MAX: Final = 64
"""Per connection; above any use."""

_LIFE_WALL_S: Final = 3_600.0
_GRACE_WALL_S: Final = STREAM_WALL_S_MAX + 60.0
"""Longer than any admitted call."""

_RPCS_MAX: Final = CALLS_MAX + WATCHES_MAX + HEALTH_WATCHES_MAX + HEALTH_CHECKS_MAX
"""Bounds calls that never send a message; the guard refuses others earlier, with a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """Optional parts of a server.

    Attributes:
        hardware: a shared poller; None: the server makes its own.
        latencies: of the newest requests.
        console_port: None: the port after the control service's; 0: no console.
    """

    day_night: DayNight | None = None
    admission: AdmissionController | None = None
    hardware: SnapshotPoller | None = None
    latencies: Latencies | None = None
    console_port: int | None = None


class ControlServer:
    """The service on its address, from `start` to `stop`, both in the loop of the engine's client.

    Every call but health and the page's files needs a key that `admits` accepts; `named` names it.
    Raises ConfigError for an address beyond loopback without TLS; in `start`, ConfigError or
    PortInUse for an unusable address or TLS file.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: ControlAddress,
        parts: ServerParts | None = None,
        *,
        admits: Callable[[str | None], bool],
        named: Callable[[str | None], str] = unnamed,
        limits: GuardLimits | None = None,
        tls: TlsFiles | None = None,
        port_limits: PortLimits | None = None,
    ) -> None:
        if tls is None and not address.is_loopback:
            raise ConfigError(
                "control_host", address.host, "a loopback host, or TLS (--tls-cert and --tls-key)"
            )
        self._address = address
        parts = parts or ServerParts()
        self.watch = EngineWatch(engine, parts.admission)
        self._health = health.aio.HealthServicer()
        self.watch.on_gone = self._engine_gone
        if parts.day_night is not None:
            parts.day_night.on_job_failure = self.watch.job_failed
        hardware = parts.hardware or SnapshotPoller(engine)
        self._looks = ConsoleSnapshots(
            engine,
            self.watch,
            hardware,
            day_night=parts.day_night,
            admission=parts.admission,
            latencies=parts.latencies,
        )
        names = NamedConnections()
        self.guard = ControlGuard(
            admits, named=named, changed=self._looks.forget, limits=limits, names=names
        )
        self._server = _grpc_server(self.guard)
        self._replies = LastReplies(engine)
        service = ControlService(
            engine,
            parts.day_night,
            admission=parts.admission,
            watch=self.watch,
            hardware=hardware,
        )
        engine_answers = EngineAnswers(engine, self._replies, self.watch)
        self._server.add_generic_rpc_handlers((generic_service(service, engine_answers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self._server)
        self._calls = JsonCalls()
        self.console = ConsoleApp(
            calls=self._calls,
            looks=self._looks,
            admits=admits,
            own_host=address.host if address.is_loopback else None,
            cookie=f"ultraserve-{address.port}",
        )
        tls = None if address.is_loopback else tls
        where = _port_address("control", address)
        self.port = GrpcPort(
            self._server, where, names=names, tls=tls, limits=port_limits, hint=_HINT
        )
        self.console_port: ConsolePort | None = None
        if parts.console_port != 0:
            where = _port_address("console", address.console(parts.console_port))
            self.console_port = ConsolePort(self.console, where, tls=tls, limits=port_limits)

    async def start(self) -> None:
        """Listen."""
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._calls.start(await self.port.start())
        if self.console_port is not None:
            await self.console_port.start()
        self.watch.start()
        self._replies.start()
        logger.info("control service ultraserve.v1 on %s", self._address)
        if self.console_port is not None:
            logger.info(
                "console on %s; `ultraserve console` prints its address with the key",
                self.console_port.url,
            )

    async def stop(self) -> None:
        """End, with a grace period for calls; idempotent."""
        await self._health.enter_graceful_shutdown()
        await self.watch.stop()
        await self.guard.ledger.stop()
        await self._replies.stop()
        await self.port.close()
        if self.console_port is not None:
            await self.console_port.stop()
        await self._calls.stop()
        await self.port.stop(STOP_GRACE_S)
        await self._looks.stop()

    async def _engine_gone(self) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)


def _port_address(which: str, address: ControlAddress) -> PortAddress:
    return PortAddress(
        name=f"the {which} port",
        host=address.host,
        port=address.port,
        field=f"{which}_port",
        host_field="control_host",
    )


def _grpc_server(guard: ControlGuard) -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=[guard],
        options=[
            *connection_options(
                # The guard refuses what is longer than it likes, and says so with details.
                message_bytes_max=4 * MESSAGE_BYTES_MAX,
                life_wall_s=_LIFE_WALL_S,
                grace_wall_s=_GRACE_WALL_S,
                streams_max=_STREAMS_MAX,
            ),
        ],
        maximum_concurrent_rpcs=_RPCS_MAX,
    )
