"""The control service's port: gRPC and the console's HTTP, on one address.

The gRPC server listens on a socket that only this user reaches; the port itself is ours. TLS ends
here for both, and a client that speaks both is given HTTP/1: browsers do, gRPC's speak HTTP/2 only.
"""

import logging
import os
from contextlib import ExitStack
from typing import Final

import grpc.aio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from serving.access.free_port import check_port
from serving.access.renewed_context import RenewedContext
from serving.access.tls_files import TlsFiles
from serving.connections.first_bytes import Speech
from serving.connections.grpc_socket import GrpcSocket
from serving.connections.named_connections import NamedConnections
from serving.connections.private_socket import private_socket
from serving.connections.shared_port import PortLimits, SharedPort
from serving.console.console_app import ConsoleApp
from serving.endpoints.control_address import ControlAddress
from serving.endpoints.json_calls import JsonCalls
from serving.errors import PortInUse

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
        self._server = server
        self._address = address
        self._console = console
        self._calls = calls
        self._names = names
        self._tls = tls
        self._limits = limits
        self._runner = web.AppRunner(
            console.app,
            access_log=None,
            logger=_http_logger,
            handle_signals=False,
            handler_cancellation=True,  # a reader that has gone is not written to
            keepalive_timeout=_KEPT_ALIVE_WALL_S,
            shutdown_timeout=STOP_GRACE_S,
        )
        self._shared: SharedPort | None = None
        self._held = ExitStack()

    @property
    def connections(self) -> int:
        """That are open now."""
        return 0 if self._shared is None else self._shared.connections

    async def start(self) -> None:
        """Listen."""
        tls = None
        if self._tls is not None:
            tls = RenewedContext(self._tls, protocols=(Speech.HTTP_1, Speech.HTTP_2), port=_NAME)
        path = self._held.enter_context(private_socket(os.environ))
        await self._runner.setup()
        assert self._runner.server is not None
        self._shared = SharedPort(
            name=_NAME,
            http=self._runner.server,
            is_at_work=self._console.is_at_work,
            grpc_socket=GrpcSocket(path, self._names),
            tls=tls,
            limits=self._limits,
        )
        host, port = self._address.host, self._address.port
        try:
            self._shared.listen(host, port)
        except OSError as error:
            check_port(host, port, field="control_port", host_field="control_host")
            raise PortInUse(host, port, field="control_port") from error
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        self._calls.start(path)
        await self._shared.start()

    async def stop(self) -> None:
        """End, with a moment for calls and requests that are at work; idempotent."""
        if self._shared is not None:
            await self._shared.close()
        await self._runner.cleanup()
        await self._calls.stop()
        await self._server.stop(STOP_GRACE_S)
        if self._shared is not None:
            await self._shared.ended()
            await self._shared.stop()
        self._held.close()
