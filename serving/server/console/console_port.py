"""The console's HTTP port, beside the control service's."""

import logging
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.http import HttpProcessingError

from serving.access.tls_files import TlsFiles
from serving.server.connections.client_connection import HttpConnection
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_port import PortAddress
from serving.server.connections.listening_port import ListeningPort
from serving.server.console.console_app import ConsoleApp

LIMITS: Final = PortLimits(connections=512, strangers=256, silent=256)
"""Half of the connections are reserved for sessions and keys."""

STOP_GRACE_S: Final = 1.0
_KEPT_ALIVE_WALL_S: Final = 75.0
"""Between two requests."""


def _is_ours(record: logging.LogRecord) -> bool:
    """False for clients' errors, with which anybody could fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
_http_logger = logging.getLogger(f"vllm.{__name__}.http")
_http_logger.addFilter(_is_ours)


class ConsolePort:
    """The port, from `start` to `stop`; `start` raises as `PortAddress.open`."""

    def __init__(
        self,
        console: ConsoleApp,
        address: PortAddress,
        *,
        tls: TlsFiles | None,
        limits: PortLimits | None = None,
    ) -> None:
        self._console = console
        self._address = address
        self._tls = tls
        self._limits = limits or LIMITS
        self._runner = web.AppRunner(
            console.app,
            access_log=None,
            logger=_http_logger,
            handle_signals=False,
            handler_cancellation=True,  # a reader that has gone is not written to
            keepalive_timeout=_KEPT_ALIVE_WALL_S,
            shutdown_timeout=STOP_GRACE_S,
        )
        self._port: ListeningPort | None = None

    @property
    def url(self) -> str:
        """The page's address, without its key."""
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._address.port}/"

    @property
    def connections(self) -> int:
        """Open connections."""
        return 0 if self._port is None else self._port.connections

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        assert self._runner.server is not None
        make = partial(HttpConnection, self._runner.server, self._console.is_at_work)
        self._port = self._address.open(
            make, protocol="http/1.1", tls=self._tls, limits=self._limits
        )
        await self._port.start()

    async def stop(self) -> None:
        """End, with a grace period for requests; idempotent."""
        if self._port is not None:
            await self._port.close()
        await self._runner.cleanup()
        if self._port is not None:
            await self._port.stop()
