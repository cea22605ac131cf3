"""The life of an API process beside the first: it ends when that says so, or is gone.

Signals are the first one's to hear: a service manager or a terminal signals every process.
"""

import asyncio
import contextlib
import logging
import signal
from typing import Any, Final

from serving.plugin.engine_shutdown import abort_requests, fail_requests, note_engine_gone
from serving.plugin.stat_logger import stat_logger_of
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.permits.lent_permits import LentPermits
from serving.server.gateway.permits.permit_messages import ClientsHeld, Times

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

_ENGINE_ENDS_WALL_S: Final = 45.0
"""The first process gives its services 27 s to end, and its engine 8."""

_TELL_WALL_S: Final = 1.0
"""Between two reports of what clients make this process hold. Assumed."""


class LentProcess:
    """Service: this process's part of the server; `server` is its uvicorn server."""

    def __init__(
        self, engine: Any, server: Any, desk: LentPermits, ingress: IngressAccount
    ) -> None:
        self._engine = engine
        self._server = server
        self._desk = desk
        self._ingress = ingress
        self._telling: asyncio.Task[None] | None = None
        self._aborting: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Leave signals to the first process, and join it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        self._desk.on_end_requests = self._end_requests
        self._desk.on_end = self._end
        await self._desk.start()
        if (stats := stat_logger_of(self._engine)) is not None:
            stats.on_times = lambda times: self._desk.tell(Times(times))
        self._telling = loop.create_task(self._tell())

    async def stop(self) -> None:
        """Leave after the first process has ended the engine; idempotent.

        An engine whose messages nobody takes any more does not end by itself.
        """
        if self._telling is not None:
            self._telling.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._desk.lost.wait(), _ENGINE_ENDS_WALL_S)
        await self._desk.stop()

    async def _tell(self) -> None:
        account = self._ingress
        while True:
            held = ClientsHeld(account.keyed_bytes, account.stranger_bytes, account.strangers)
            self._desk.tell(held)
            await asyncio.sleep(_TELL_WALL_S)

    def _end_requests(self, engine_is_gone: bool) -> None:
        if engine_is_gone:
            note_engine_gone(self._engine)
            fail_requests(self._engine)
        else:
            self._aborting = asyncio.ensure_future(abort_requests(self._engine))

    def _end(self, close_wall_s: int) -> None:
        self._server.config.timeout_graceful_shutdown = close_wall_s
        self._server.should_exit = True
