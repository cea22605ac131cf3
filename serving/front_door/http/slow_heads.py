"""Closes connections on which no request begins: uvicorn waits for a request's head for ever.

A client that sends its headers a byte at a time, or nothing, would hold a connection, and enough of
them all of the server's. Bodies have `request_body`'s time; connections between two requests have
uvicorn's `timeout_keep_alive`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

HEAD_WAIT_S: Final = 20.0
"""Wall seconds that a connection has to send a request's head, as `request_body.WAIT_S`."""


class SlowHeads:
    """Looks at the connections of `server`, a uvicorn server, between `start` and `stop`.

    A new connection is closed between one and one and a quarter times `wait_s` after it was seen
    without a request; one that has had a request has uvicorn's `timeout_keep_alive` besides.
    """

    def __init__(
        self,
        server: Any,
        *,
        wait_s: float = HEAD_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._wait_s = wait_s
        self._kept_s = float(server.config.timeout_keep_alive)
        self._clock = clock
        self._since: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look."""
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Look no more; idempotent."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._wait_s / 4)
            try:
                self.look()
            except Exception:
                logger.exception("connections were not looked at")

    def look(self) -> None:
        """Close the connections whose time is over."""
        now_s = self._clock()
        for connection in list(self._server.server_state.connections):
            if not hasattr(connection, "cycle"):
                continue  # a websocket, whose head has come
            cycle = connection.cycle  # the request that it is about, or was about last
            if cycle is not None and not cycle.response_complete:
                self._since.pop(connection, None)
                continue
            last, since_s = self._since.get(connection, (None, now_s))
            if last is not cycle or connection not in self._since:
                self._since[connection] = (cycle, now_s)
            elif now_s - since_s >= self._wait_s + (self._kept_s if cycle is not None else 0.0):
                connection.transport.close()
