"""Result of one request; all measures come from these.

Times are wall ns since the run's start, by the system's monotonic clock.
"""

from dataclasses import dataclass
from typing import Final

from loadgen.records.arrays import Int64s

# Kinds of error, beside "status 503" (HTTP) and "UNAVAILABLE" (gRPC's code) and the like.
CONNECT: Final = "connect"  # no connection could be opened: refused, unreachable, not trusted
CUT_OFF: Final = "cut off"  # the connection ended before the reply was complete
TIMEOUT: Final = "timeout"  # not complete within the run's --timeout
STREAM: Final = "stream"  # a reply that says it failed, cannot be read, or is not complete
ABORTED: Final = "aborted"  # cancelled by us, because the run was interrupted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """A request that was sent. `error` is None, or the kind of its failure.

    `intended_ns` is when it was due, `ended_ns` the end of its reply, `chunk_ns` the arrival of
    each chunk, int64[chunks]. Token counts are the server's, or None; `cached_tokens` those of the
    prompt from its prefix cache. `text` is the reply, if kept; `streamed_ids` the number of its
    token ids, None if not sent. `resent`: sent twice, because a kept connection was closed under
    it; times count from the first. Raises ValueError for times out of order.
    """

    request_id: int
    traffic_class: str
    session_id: int
    turn: int
    worker: int
    intended_ns: int
    sent_ns: int
    ended_ns: int
    chunk_ns: Int64s
    asked_input_tokens: int
    asked_output_tokens: int
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    error: str | None = None
    message: str = ""
    text: str | None = None
    streamed_ids: int | None = None
    resent: bool = False

    def __post_init__(self) -> None:
        if self.sent_ns < self.intended_ns:
            raise ValueError(f"sent at {self.sent_ns} ns, before {self.intended_ns} ns, when due")
        if self.ended_ns < self.sent_ns:
            raise ValueError(f"ended at {self.ended_ns} ns, before it was sent")
        if self.chunk_ns.size and self.chunk_ns[0] < self.sent_ns:
            raise ValueError(f"a chunk at {self.chunk_ns[0]} ns, before the send")

    @property
    def counted_output_tokens(self) -> int:
        """The server's count, or the number of chunks without one."""
        return self.chunk_ns.size if self.output_tokens is None else self.output_tokens
