"""What happened to one request, and the lines that keep it: everything measured comes from these.

All times are wall nanoseconds since the attack's start, as this process's monotonic clock saw
them; `dilation` (wall seconds per emulated second) turns them into emulated time, then or later.
"""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request that was sent. `error` is None, or the kind of its failure.

    `intended_ns` is when it was due, `sent_ns` when it went; `chunk_ns` are the arrivals of its
    chunks. Token counts are the server's own, None where it gave none. Raises ValueError for times
    out of order.
    """

    request_id: int
    intended_ns: int
    sent_ns: int
    chunk_ns: tuple[int, ...]
    asked_input_tokens: int
    asked_output_tokens: int
    input_tokens: int | None
    output_tokens: int | None
    error: str | None
    message: str
    dilation: float

    def __post_init__(self) -> None:
        if self.sent_ns < self.intended_ns:
            raise ValueError(f"sent at {self.sent_ns} ns, before {self.intended_ns} ns, when due")
        if self.chunk_ns and self.chunk_ns[0] < self.sent_ns:
            raise ValueError(f"a chunk at {self.chunk_ns[0]} ns, before the send")

    @property
    def first_token_ns(self) -> int | None:
        """The first chunk's arrival, None if none came."""
        return self.chunk_ns[0] if self.chunk_ns else None

    @property
    def last_ns(self) -> int | None:
        """The last chunk's arrival, None if none came."""
        return self.chunk_ns[-1] if self.chunk_ns else None

    @property
    def counted_output_tokens(self) -> int:
        """The server's count, or the number of chunks where it gave none."""
        return len(self.chunk_ns) if self.output_tokens is None else self.output_tokens

    def to_json_line(self) -> bytes:
        """Return one line of the results file, its end included."""
        fields = {
            "id": self.request_id,
            "intended_ns": self.intended_ns,
            "sent_ns": self.sent_ns,
            "first_token_ns": self.first_token_ns,
            "chunk_ns": self.chunk_ns,
            "last_ns": self.last_ns,
            "asked_input_tokens": self.asked_input_tokens,
            "asked_output_tokens": self.asked_output_tokens,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "error": self.error,
            "message": self.message,
            "dilation": self.dilation,
        }
        return msgspec.json.encode(fields) + b"\n"
