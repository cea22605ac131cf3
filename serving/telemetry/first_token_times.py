"""Emulated times to first token of the newest requests, as clients of this process saw them."""

from collections import deque
from collections.abc import Iterable
from typing import Final

KEPT_MAX: Final = 1_000
LEAST: Final = 100
"""Fewer cannot tell 99 % in time from one that was late by chance."""


class FirstTokenTimes:
    """The last `KEPT_MAX` times, each with the emulated time of its token."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)

    def add(self, emulated_s: float, ttft_s: Iterable[float]) -> None:
        """Add the times of one step, which ended at `emulated_s`."""
        self._kept.extend((emulated_s, each) for each in ttft_s)

    def share_within(self, limit_s: float, *, since_s: float) -> float | None:
        """Share of those after `since_s` within `limit_s`; None of fewer than `LEAST`."""
        judged = [ttft_s <= limit_s for at_s, ttft_s in self._kept if at_s > since_s]
        return sum(judged) / len(judged) if len(judged) >= LEAST else None
