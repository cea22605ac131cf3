"""The client protocol: a request goes in, a reply comes out, and it never raises.

Times are readings of the system's monotonic clock, in whole nanoseconds.
"""

from dataclasses import dataclass
from typing import Protocol

from loadgen.records.arrays import Int64s
from loadgen.records.request import Request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """The reply of one request.

    `chunk_ns` holds the arrival of each chunk with generated text, int64[chunks]; a chunk may carry
    several tokens. Token counts are the server's own, or None. `error` is None for a complete
    reply, otherwise its kind, with `message` in words. `text` and `token_ids` are there if the
    request asked to keep them and the server sent them. `resent`: the request was sent twice,
    because a kept connection was closed under it.
    """

    sent_ns: int
    ended_ns: int
    chunk_ns: Int64s
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None = None
    error: str | None = None
    message: str = ""
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    resent: bool = False


class RequestClient(Protocol):
    """Sends requests of one run to one server, concurrently."""

    async def send(self, request: Request) -> Reply:
        """Send and wait for the end of the reply; cancelling this gives a reply of kind ABORTED."""
        ...
