"""Ends a run early when its server has gone.

The rule: for `UNREACHABLE_S` of wall time no request reached it, at least `REQUESTS_MIN` tried, and
no open connection received anything. A server that is overloaded, fails, or restarts within that
time is measured as it is.
"""

from typing import Final

from loadgen.records.plain_number import counted
from loadgen.records.result import CONNECT, Result

UNREACHABLE_S: Final = 5.0
REQUESTS_MIN: Final = 10
KINDS: Final = frozenset({CONNECT, "UNAVAILABLE"})
"""Error kinds of HTTP and gRPC."""


class UnreachableWatch:
    """Watches every result as it ends."""

    def __init__(self) -> None:
        self._since_ns: int | None = None  # when the first of those in a row ended
        self._requests = 0
        self._chunks = 0

    def gone(self, result: Result, *, chunks: int) -> str:
        """A sentence when the server has gone, else empty; `chunks` is the run's total."""
        if result.error not in KINDS:
            self._since_ns = None
            return ""
        if self._since_ns is None or chunks != self._chunks:
            self._since_ns, self._requests, self._chunks = result.ended_ns, 0, chunks
        self._requests += 1
        lasted_s = (result.ended_ns - self._since_ns) / 1e9
        if lasted_s < UNREACHABLE_S or self._requests < REQUESTS_MIN:
            return ""
        tried = counted(self._requests, "request")
        return (
            f"the server could not be reached for {lasted_s:.1f} wall s, in which {tried} tried, "
            f"so that no more were sent ({result.message})"
        )
