"""The control port: the service behind its guard, health and reflection, from start to stop."""

import logging
from collections.abc import Callable
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from emulator.errors import ConfigError
from protos.ultraserve.v1 import control_pb2 as pb
from protos.ultraserve.v1 import control_pb2_grpc as pb_grpc
from serving.access.free_port import check_port
from serving.access.tls_files import TlsFiles
from serving.controller.day_night import DayNight
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_guard import (
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
from serving.endpoints.control_service import ControlService
from serving.endpoints.engine_door import EngineDoor
from serving.endpoints.engine_rest import ServedEngine
from serving.endpoints.engine_watch import EngineWatch
from serving.errors import PortInUse
from serving.front_door.grpc.connection_options import connection_options
from serving.front_door.grpc.grpc_tls import RenewedCertificates

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["ControlService"].full_name

_STOP_GRACE_S: Final = 1.0
_METADATA_BYTES_MAX: Final = 16 * 2**10
_STREAMS_MAX: Final = 64
"""Of one connection; more than a client has a use for."""

_IDLE_MS: Final = 600_000
"""A connection without a call ends; a client makes another when it needs one."""

_LIFE_WALL_S: Final = 3_600.0
_GRACE_WALL_S: Final = STREAM_WALL_S_MAX + 60.0
"""Longer than any call that the guard lets in; what it ends has gone by then."""

_RPCS_MAX: Final = CALLS_MAX + WATCHES_MAX + HEALTH_WATCHES_MAX + HEALTH_CHECKS_MAX
"""The guard refuses before that, and says why; this is for calls that never say anything."""


class ControlServer:
    """The service on its address, from `start` to `stop`; both in the loop of the engine's client.

    `admits` says whether a key is one of the service's, and `named` whose it is; every call but
    health needs one. `door` is None where requests pass none.

    Raises:
        ConfigError: an address beyond loopback without TLS.
        ConfigError, PortInUse: in `start`, when nobody, or another program, can listen there.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: ControlAddress,
        day_night: DayNight | None = None,
        *,
        admits: Callable[[str | None], bool],
        named: Callable[[str | None], str] = unnamed,
        limits: GuardLimits | None = None,
        door: EngineDoor | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        if tls is None and not address.is_loopback:
            raise ConfigError(
                field="control_host",
                value=address.host,
                expected="a loopback host, or TLS (--tls-cert and --tls-key)",
            )
        self._address = address
        self._tls = tls if not address.is_loopback else None
        self.guard = ControlGuard(admits, named=named, limits=limits)
        self.watch = EngineWatch(engine, door)
        self._health = health.aio.HealthServicer()
        self.watch.on_gone = self._engine_gone
        self._server = grpc.aio.server(
            interceptors=[self.guard],
            options=[
                *connection_options(
                    # The guard refuses what is longer than it likes, and says so with details.
                    message_bytes_max=4 * MESSAGE_BYTES_MAX,
                    life_wall_s=_LIFE_WALL_S,
                    grace_wall_s=_GRACE_WALL_S,
                ),
                ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
            maximum_concurrent_rpcs=_RPCS_MAX,
        )
        service = ControlService(engine, day_night, door=door, watch=self.watch)
        pb_grpc.add_ControlServiceServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        """Listen."""
        try:
            if self._tls is None:
                self._server.add_insecure_port(str(self._address))
            else:
                self._server.add_secure_port(
                    str(self._address), RenewedCertificates(self._tls).credentials()
                )
        except RuntimeError as error:
            host, port = self._address.host, self._address.port
            check_port(host, port, field="control_port", host_field="control_host")
            raise PortInUse(host, port, field="control_port") from error
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.watch.start()
        await self._server.start()
        logger.info("control service ultraserve.v1 on %s", self._address)

    async def stop(self) -> None:
        """End, with a moment for calls that are at work; idempotent."""
        await self._health.enter_graceful_shutdown()
        await self.watch.stop()
        await self._server.stop(_STOP_GRACE_S)

    async def _engine_gone(self) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
