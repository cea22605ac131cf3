"""The control service's two ports, gRPC and the console, before what answers their calls."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
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
from serving.server.console.event_stream import Streams
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
from serving.server.control.generic_service import SERVICE as DESCRIPTOR
from serving.server.control.json_calls import JsonCalls
from serving.server.gateway.grpc.connection_options import connection_options

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
class PortsAccess:
    """Who may call, and how much.

    Attributes:
        admits: whether a key is one of the operator's; `named` names it for the log.
        console_port: None: the port after the control service's; 0: no console.
        limits: None: the guard's own.
    """

    admits: Callable[[str | None], bool]
    named: Callable[[str | None], str] = unnamed
    console_port: int | None = None
    limits: GuardLimits | None = None
    tls: TlsFiles | None = field(default=None)
    port_limits: PortLimits | None = None


class ControlPorts:
    """The ports at `address`, from `start` to `stop`.

    `service` answers the calls, `streams` makes the console's; `changed` is called after each
    change; `relays` as for `ControlGuard`. Every call but health and the page's files needs a key.
    Raises ConfigError for an address beyond loopback without TLS; in `start`, ConfigError or
    PortInUse for an unusable address or TLS file.
    """

    def __init__(
        self,
        address: ControlAddress,
        service: grpc.GenericRpcHandler,
        streams: Streams,
        access: PortsAccess,
        *,
        changed: Callable[[], None] = lambda: None,
        relays: bool = False,
    ) -> None:
        if access.tls is None and not address.is_loopback:
            raise ConfigError(
                "control_host", address.host, "a loopback host, or TLS (--tls-cert and --tls-key)"
            )
        self._address = address
        self._health = health.aio.HealthServicer()
        names = NamedConnections()
        self.guard = ControlGuard(
            access.admits,
            named=access.named,
            changed=changed,
            limits=access.limits,
            names=names,
            relays=relays,
        )
        server = _grpc_server(self.guard)
        server.add_generic_rpc_handlers((service,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        services = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, server)
        self._calls = JsonCalls()
        self.console = ConsoleApp(
            calls=self._calls,
            streams=streams,
            admits=access.admits,
            own_host=address.host if address.is_loopback else None,
            cookie=f"ultraserve-{address.port}",
        )
        tls = None if address.is_loopback else access.tls
        where = _port_address("control", address)
        self.port = GrpcPort(
            server, where, names=names, tls=tls, limits=access.port_limits, hint=_HINT
        )
        self.console_port: ConsolePort | None = None
        if access.console_port != 0:
            where = _port_address("console", address.console(access.console_port))
            self.console_port = ConsolePort(self.console, where, tls=tls, limits=access.port_limits)

    async def start(self) -> None:
        """Listen."""
        await self._say_health(health_pb2.HealthCheckResponse.SERVING)
        self._calls.start(await self.port.start())
        if self.console_port is not None:
            await self.console_port.start()
        logger.info("control service ultraserve.v1 on %s", self._address)
        if self.console_port is not None:
            logger.info(
                "console on %s; `ultraserve console` prints its address with the key",
                self.console_port.url,
            )

    async def stop_health(self) -> None:
        """Tell health's watchers that the end comes; idempotent."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """End, with a grace period for calls; idempotent."""
        await self.port.close()
        if self.console_port is not None:
            await self.console_port.stop()
        await self._calls.stop()
        await self.port.stop(STOP_GRACE_S)

    async def gone(self) -> None:
        """Say that there is nothing to serve any more."""
        await self._say_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _say_health(self, status: "health_pb2.HealthCheckResponse.ServingStatus") -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


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
