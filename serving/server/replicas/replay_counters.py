"""What is counted of requests that a replica did not bring to their end, and why they go anew."""

from enum import StrEnum
from typing import Protocol


class ReplayReason(StrEnum):
    """Why a request, or its prompt, is sent anew.

    LOST: its replica, or the answer, broke. UNAVAILABLE: that answered 503, or took no connection.
    SHARED: another one came to prefill, and this prompt was above its own one's share.
    """

    LOST = "lost"
    UNAVAILABLE = "unavailable"
    SHARED = "shared"


class Counters(Protocol):
    """What becomes of requests, counted."""

    def replayed(self, reason: ReplayReason, *, begun: bool) -> None:
        """A request is sent anew; `begun`: in the middle of its stream."""

    def broken(self) -> None:
        """A stream that had begun could not go on."""
