"""Clients behind a gate, under a manual clock, and their server's input."""

import heapq
from collections.abc import Callable
from itertools import count

from serving.server.connections.stream_gate import StreamGate
from serving.server.connections.stream_turns import (
    STRANGERS_CALLS,
    STRANGERS_CALLS_PERIOD_S,
    PortTurns,
)
from tests.serving.server.connections.http2_frames import HEADERS, PREFACE, RST_STREAM, frame

CALL_S = STRANGERS_CALLS_PERIOD_S / STRANGERS_CALLS
"""Between two calls of strangers, at their pace."""

Connect = Callable[[], "Connection"]


class Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Clock:
    """A loop's time, advanced by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._due, (self.now_s + delay, next(self._order), timer))
        return timer

    def pass_s(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, timer = heapq.heappop(self._due)
            if (callback := timer.callback) is not None:
                callback()
        self.now_s = until_s


class Connection:
    """A client, its gate, and its server's input."""

    def __init__(self, port: PortTurns, clock: Clock) -> None:
        self.heard = b""
        self.gate = StreamGate(port, clock, self.go_on)
        self._stream = -1
        self.says(PREFACE)

    def go_on(self) -> None:
        self.heard += self.gate.take(b"")

    def says(self, data: bytes) -> None:
        self.heard += self.gate.take(data)

    def calls(self, times: int = 1, *, takes_back: bool = False) -> None:
        """Begin calls, and perhaps reset them before an answer."""
        for _ in range(times):
            self._stream += 2
            self.says(frame(HEADERS, self._stream, b"h" * 50))
            if takes_back:
                self.says(frame(RST_STREAM, self._stream, b"\0\0\0\x08"))

    @property
    def begun(self) -> int:
        """The calls that have reached its server."""
        return self.heard.count(frame(HEADERS, 0, b"h" * 50)[:5])
