"""What is counted of requests that a replica did not bring to their end, and why they go anew."""

from enum import StrEnum
from typing import Protocol


class ReplayReason(StrEnum):
    """Why an attempt at a request, or at its prompt, was not the last one.

    LOST: its replica broke it off, or answered with a 5xx other than 503. UNAVAILABLE: its replica
    answered 503, or took no connection. REFUSED: its replica answered 429. SHARED: another replica
    came to prefill, and the prompt was among the last ones of a replica that had more than its
    share.
    """

    LOST = "lost"
    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    SHARED = "shared"


class Counters(Protocol):
    """What becomes of requests, counted."""

    def replayed(self, reason: ReplayReason, *, begun: bool) -> None:
        """After an attempt a replica is looked for again; `begun`: amid the stream."""

    def broken(self) -> None:
        """A stream that had begun could not go on."""
