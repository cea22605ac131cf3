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
from serving.access.tls_files import TlsFiles
from serving.controller.day_night import DayNight
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.control_guard import MESSAGE_BYTES_MAX, ControlGuard
from serving.endpoints.control_service import ControlService
from serving.endpoints.engine_door import EngineDoor
from serving.endpoints.engine_rest import ServedEngine
from serving.endpoints.engine_watch import EngineWatch
from serving.errors import PortInUse
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


class ControlServer:
    """The service on its address, from `start` to `stop`; both in the loop of the engine's client.

    `admits` says whether a key is one of the service's; every call but health needs one. `door` is
    None where requests pass none.

    Raises:
        ConfigError: an address beyond loopback without TLS.
        PortInUse: in `start`, when another program listens there.
    """

    def __init__(
        self,
        engine: ServedEngine,
        address: ControlAddress,
        day_night: DayNight | None = None,
        *,
        admits: Callable[[str | None], bool],
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
        self.guard = ControlGuard(admits)
        self.watch = EngineWatch(engine, door)
        self._health = health.aio.HealthServicer()
        self.watch.on_gone = self._engine_gone
        # Without sharing, a second server on the port is told so instead of taking half the calls.
        self._server = grpc.aio.server(
            interceptors=[self.guard],
            options=[
                ("grpc.so_reuseport", 0),
                # The guard refuses what is longer than it likes, and says so with details.
                ("grpc.max_receive_message_length", 4 * MESSAGE_BYTES_MAX),
                ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
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
            raise PortInUse(self._address.host, self._address.port) from error
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
