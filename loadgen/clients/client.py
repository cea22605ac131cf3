"""The seam between the attack and a protocol: a request goes in, a reply comes out, never a raise.

Times are readings of the system's monotonic clock, in whole nanoseconds.
"""

from dataclasses import dataclass
from typing import Protocol

from loadgen.request import Request

# Kinds of error, beside "status 503" and the like.
CONNECTION = "connection"  # refused, reset, or closed within the reply
TIMEOUT = "timeout"  # not complete within the run's --timeout
STREAM = "stream"  # a reply that says it failed, cannot be read, or is not complete
ABORTED = "aborted"  # cancelled by us, because the run was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back for one request.

    `chunk_ns` holds the arrival of each chunk with generated text; a chunk may carry several
    tokens. Token counts are the server's own; None where it gave none. `error` is None for a
    complete reply, otherwise its kind, with `message` in words.
    """

    sent_ns: int
    chunk_ns: tuple[int, ...]
    input_tokens: int | None
    output_tokens: int | None
    error: str | None
    message: str


class Client(Protocol):
    """Sends requests of one run to one server; many may be under way at once."""

    async def send(self, request: Request) -> Reply:
        """Send and wait for the end of the reply; cancelling this gives a reply of kind ABORTED."""
        ...
