"""Emulated latencies of the newest requests of one kind, and how many of them were in time."""

from collections import deque
from collections.abc import Iterable
from typing import Final

KEPT_MAX: Final = 1_000
LEAST: Final = 100
"""Fewer cannot tell 99 % in time from one that was late by chance."""


class RecentTimes:
    """The last `KEPT_MAX` times, each with an emulated moment from which on it tells something."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque(maxlen=KEPT_MAX)

    def add(self, emulated_s: float, times_s: Iterable[float]) -> None:
        """Add times of one moment."""
        self._kept.extend((emulated_s, each) for each in times_s)

    def share_within(self, limit_s: float | None, *, since_s: float | None) -> float | None:
        """Share of those after `since_s` within `limit_s`; None of fewer than `LEAST`, without a
        limit or a moment.
        """
        if limit_s is None or since_s is None:
            return None
        judged = [time_s <= limit_s for at_s, time_s in self._kept if at_s > since_s]
        return sum(judged) / len(judged) if len(judged) >= LEAST else None
