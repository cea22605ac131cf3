"""Demand by the policy's clock: counted arrivals, in buckets of the day."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from serving.policy.day_night.day_clock import DayClock
from serving.policy.day_night.history import BUCKETS_MAX, DemandHistory

BUCKET_S: Final = 300.0
"""Seconds of the day."""

LOAD_REQUESTS: Final = 10
"""Of which a present rate is made, if an hour has as many: one request in a bucket of a day that
passes quickly is not a rate.
"""
LOAD_BUCKETS_MAX: Final = 12

Bucket = tuple[float, float]
"""Its end in the day's calendar, and its rate in requests per emulated second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests arrived by an emulated time; both from the engine's start."""

    emulated_s: float
    requests: int


class DemandMeter:
    """Turns readings of an engine's count into buckets and a current rate.

    Rates are requests per emulated second, bucket ends the day's; a bucket without a reading has
    the mean rate of those around it. `buckets` are those before the first reading.
    """

    def __init__(self, clock: DayClock, buckets: Iterable[Bucket] = ()) -> None:
        self._clock = clock
        self._buckets = deque(buckets, maxlen=BUCKETS_MAX)
        self._history = self._told()
        self._recent: deque[Arrivals] = deque()
        self._end_s = 0.0  # of the open bucket, once there is a reading
        self._begin = (0.0, 0.0)  # of the open bucket: emulated seconds, and arrivals until then

    def _told(self) -> DemandHistory:
        pace = self._clock.day_s_per_emulated_s
        return DemandHistory.of(self._buckets, bucket_s=BUCKET_S, pace=pace)

    def read(self, reading: Arrivals) -> list[Bucket]:
        """Take a reading, ignored unless later than the last; returns the buckets that it ends."""
        if not self._recent:
            self._recent.append(reading)
            self._end_s = _bucket_end(self._clock.day_s(reading.emulated_s))
            self._begin = (reading.emulated_s, reading.requests)
            return []
        before = self._recent[-1]
        if reading.emulated_s <= before.emulated_s:
            return []
        ended = []
        while self._end_s <= self._clock.day_s(reading.emulated_s):
            ended.append(self._close(before, reading))
        if ended:
            self._buckets.extend(ended)
            self._history = self._told()
        self._recent.append(reading)
        while len(self._recent) > 2 and self._is_enough(self._recent[1], reading):
            self._recent.popleft()
        return ended

    def _is_enough(self, since: Arrivals, reading: Arrivals) -> bool:
        """Whether the present rate may be that since an earlier reading."""
        buckets = (
            (reading.emulated_s - since.emulated_s) * self._clock.day_s_per_emulated_s / BUCKET_S
        )
        known = reading.requests - since.requests >= LOAD_REQUESTS
        return buckets >= LOAD_BUCKETS_MAX or (known and buckets >= 1)

    def _close(self, before: Arrivals, after: Arrivals) -> Bucket:
        """Returns the open bucket, which ends between two readings."""
        end_s = self._clock.emulated_s(self._end_s)
        share = (end_s - before.emulated_s) / (after.emulated_s - before.emulated_s)
        arrived = before.requests + share * (after.requests - before.requests)
        begin_s, arrived_before = self._begin
        bucket = (self._end_s, max(arrived - arrived_before, 0.0) / (end_s - begin_s))
        self._begin = (end_s, arrived)
        self._end_s += BUCKET_S
        return bucket

    @property
    def history(self) -> DemandHistory:
        """Closed buckets, those before the first reading included."""
        return self._history

    @property
    def load_per_s(self) -> float:
        """Requests per emulated second over about a bucket, or over so many that it is known; 0
        before two readings.
        """
        if len(self._recent) < 2:
            return 0.0
        first, last = self._recent[0], self._recent[-1]
        return (last.requests - first.requests) / (last.emulated_s - first.emulated_s)


def _bucket_end(day_s: float) -> float:
    """The first bucket's end after a moment; buckets divide the calendar's hours."""
    return (day_s // BUCKET_S + 1) * BUCKET_S
