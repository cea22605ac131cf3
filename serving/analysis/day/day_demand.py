"""Requests of a day, counted by interval, and those of the time before it.

Poisson, from the seed alone, so that every policy meets the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.analysis.day.day_trace import DAY_S, DayTrace
from serving.policy.day_night.history import DemandHistory

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_ARRIVALS_STREAM, _PAST_STREAM = 1, 2
_PAST_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkTerms:
    """Seconds of an interval and of a look. Raises ConfigError unless a look is whole intervals."""

    interval_s: float = 60.0
    look_s: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("interval_s", "look_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(name, getattr(self, name), "above 0 s")
        if self.look_s % self.interval_s:
            expected = f"a multiple of the interval, {self.interval_s:g} s"
            raise ConfigError("look_s", self.look_s, expected)
        if self.seed < 0:
            raise ConfigError("seed", self.seed, "from 0 on")

    @property
    def look_intervals(self) -> int:
        """Intervals of a look."""
        return round(self.look_s / self.interval_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DayDemand:
    """Request counts by interval of the day, and by look of the time before it.

    A `past_is_assumed` is dropped after a day, so that no forecast looks a week back into the
    future.
    """

    begins: datetime
    interval_s: float
    arrivals: Int64s  # [intervals]
    past: DemandHistory
    past_is_assumed: bool = False

    @property
    def length_s(self) -> float:
        """Of all intervals."""
        return len(self.arrivals) * self.interval_s

    def at(self, interval: int) -> datetime:
        """When an interval begins."""
        return self.begins + timedelta(seconds=interval * self.interval_s)

    @property
    def first_h(self) -> float:
        """Hours from midnight to the first interval."""
        return self.begins.hour + self.begins.minute / 60


def day_demand(
    trace: DayTrace,
    *,
    begin_s: float,
    length_s: float,
    terms: WalkTerms,
    cold: bool = False,
) -> DayDemand:
    """Draw the requests of a part of the trace, and of up to a week before it.

    Before a trace that has no earlier part there is a new draw of its last day (assumed), or, with
    `cold`, nothing is known. The same requests come in both. Raises ConfigError for a part outside
    of the trace.
    """
    intervals = int(length_s // terms.interval_s)
    if begin_s < 0 or begin_s + length_s > trace.length_s or not intervals:
        expected = f"within the {trace.length_s / 3_600:g} hours of the trace"
        raise ConfigError("days", f"{length_s / 3_600:g} h from {begin_s / 3_600:g} h", expected)
    arrivals_rng = np.random.default_rng([terms.seed, _ARRIVALS_STREAM])
    past_rng = np.random.default_rng([terms.seed, _PAST_STREAM])
    past_s = min(begin_s, _PAST_DAYS * DAY_S) // terms.look_s * terms.look_s
    past_begin_s = begin_s - past_s
    rates_at = partial(trace.rates_at, repeats=not past_s and trace.is_of_whole_days)
    arrivals = _counted(arrivals_rng, rates_at, begin_s, intervals, terms.interval_s)
    assumed = not past_s and not cold
    if assumed:
        past_s = min(trace.length_s, DAY_S) // terms.look_s * terms.look_s
        past_begin_s = trace.length_s - past_s
    looks = round(past_s / terms.look_s)
    counted = _counted(past_rng, rates_at, past_begin_s, looks, terms.look_s)
    begins_s = trace.begins.timestamp() + begin_s
    return DayDemand(
        begins=datetime.fromtimestamp(begins_s, tz=trace.begins.tzinfo),
        interval_s=terms.interval_s,
        arrivals=arrivals,
        past=DemandHistory(
            end_s=begins_s, bucket_s=terms.look_s, requests_per_s=counted / terms.look_s
        ),
        past_is_assumed=assumed,
    )


def _counted(
    rng: np.random.Generator,
    rates_at: Callable[[Float64s], Float64s],
    begin_s: float,
    buckets: int,
    bucket_s: float,
) -> Int64s:
    """Requests of each bucket, by the rate at its middle."""
    middles_s = begin_s + (np.arange(buckets, dtype=np.float64) + 0.5) * bucket_s
    counted: Int64s = rng.poisson(rates_at(middles_s) * bucket_s)
    return counted
