"""The control service's port: gRPC and the console's HTTP, on one address.

The gRPC server listens on a socket that only this user reaches; the port itself is ours. TLS ends
here for both, and a client that speaks both is given HTTP/1: browsers do, gRPC's speak HTTP/2 only.
"""

import logging
from typing import Final

import grpc.aio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from serving.access.tls_files import TlsFiles
from serving.server.connections.grpc_port import GrpcPort, PortAddress
from serving.server.connections.named_connections import NamedConnections
from serving.server.connections.shared_port import PortLimits
from serving.server.console.console_app import ConsoleApp
from serving.server.control.control_address import ControlAddress
from serving.server.control.json_calls import JsonCalls

_NAME: Final = "the control port"
STOP_GRACE_S: Final = 1.0
_KEPT_ALIVE_WALL_S: Final = 75.0
"""Between two requests of HTTP on one connection."""


def _is_ours(record: logging.LogRecord) -> bool:
    """False for what a client did wrong: anybody could fill the log with that."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
_http_logger = logging.getLogger(f"vllm.{__name__}.http")
_http_logger.addFilter(_is_ours)


class ControlPort:
    """From `start` to `stop`; `server` is started with it, and stopped, and has `names` of those
    who connect.

    Raises ConfigError for TLS files that are wrong; `start` as well, and PortInUse, when nobody, or
    another program, can listen there.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        address: ControlAddress,
        *,
        console: ConsoleApp,
        calls: JsonCalls,
        names: NamedConnections | None = None,
        tls: TlsFiles | None = None,
        limits: PortLimits | None = None,
    ) -> None:
        self._console = console
        self._calls = calls
        named = PortAddress(
            name=_NAME,
            host=address.host,
            port=address.port,
            field="control_port",
            host_field="control_host",
        )
        self._port = GrpcPort(server, named, names=names, tls=tls, limits=limits)
        self._runner = web.AppRunner(
            console.app,
            access_log=None,
            logger=_http_logger,
            handle_signals=False,
            handler_cancellation=True,  # a reader that has gone is not written to
            keepalive_timeout=_KEPT_ALIVE_WALL_S,
            shutdown_timeout=STOP_GRACE_S,
        )

    @property
    def connections(self) -> int:
        """That are open now."""
        return self._port.connections

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        assert self._runner.server is not None
        http, is_at_work = self._runner.server, self._console.is_at_work
        self._calls.start(await self._port.start(http=http, is_at_work=is_at_work))

    async def stop(self) -> None:
        """End, with a moment for calls and requests that are at work; idempotent."""
        await self._port.close()
        await self._runner.cleanup()
        await self._calls.stop()
        await self._port.stop(STOP_GRACE_S)
