"""Stamps bytes first and parses them later, so that parsing does not delay a burst's stamps.

An engine step sends a token to every request at once; parsed on the spot, the last would seem late.
A read is queued until the event loop has gone round once without another.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

# Reads that wait at most: about 1.5 ms of parsing, at 1.5 us each. It is reached when more comes
# than can be kept up with, and is then part of the loop's lag, which a run reports.
WAITING_MAX: Final = 1_024


class StreamParser(Protocol):
    """Parses bytes of a stream as they arrive."""

    def parse(self, data: bytes, at_ns: int) -> None:
        """Parse bytes that arrived at `at_ns`; must not raise."""
        ...


class ArrivalQueue:
    """Stamped, unparsed bytes of all connections of a client."""

    __slots__ = ("_loop", "_now_ns", "_seen", "_turning", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._waiting: list[tuple[StreamParser, bytes, int]] = []
        self._seen = 0
        self._turning = False

    def add(self, parser: StreamParser, data: bytes) -> None:
        """Stamp `data` and schedule its parsing."""
        self._waiting.append((parser, data, self._now_ns()))
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def drain(self) -> None:
        """Parse all bytes now, in order; for a closing connection."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for parser, data, at_ns in waiting:
                parser.parse(data, at_ns)

    def _turn(self) -> None:
        waiting = len(self._waiting)
        if self._seen < waiting < WAITING_MAX:
            self._seen = waiting
            self._loop.call_soon(self._turn)
            return
        self._turning = False
        self._seen = 0
        self.drain()
