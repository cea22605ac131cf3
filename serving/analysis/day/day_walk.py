"""A policy walked over days, minute by minute, on the simulated curves.

Requests are Poisson, from the seed alone, so that every policy meets the same ones, and spread
evenly over the serving groups, at the curve's latencies. Those above saturation wait as a backlog,
first come first served; requests that find one are late (assumed). The policy sees observable
figures alone.
"""

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.analysis.day.day_trace import DAY_S, DayTrace
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals, LeasedGroups
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Policy

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

    @property
    def first_h(self) -> float:
        """Hours from midnight to the first interval."""
        return self.begins.hour + self.begins.minute / 60

    def future(self, look_s: float) -> DemandHistory:
        """The day's demand by looks, for an oracle."""
        per_interval = round(look_s / self.interval_s)
        whole = len(self.arrivals) // per_interval * per_interval
        rates = self.arrivals[:whole].reshape(-1, per_interval).sum(axis=1) / look_s
        end_s = self.begins.timestamp() + whole * self.interval_s
        return DemandHistory(end_s=end_s, bucket_s=look_s, requests_per_s=rates)


def day_demand(
    trace: DayTrace,
    *,
    begin_s: float,
    length_s: float,
    terms: WalkTerms,
    cold: bool = False,
) -> DayDemand:
    """Draw the requests of a part of the trace, and of up to a week before it.

    A trace without an earlier part is assumed to repeat: the day before is a new draw of its last
    day, or empty with `cold`. Raises ConfigError for a part outside of the trace.
    """
    intervals = int(length_s // terms.interval_s)
    if begin_s < 0 or begin_s + length_s > trace.length_s or not intervals:
        expected = f"within the {trace.length_s / 3_600:g} hours of the trace"
        raise ConfigError("days", f"{length_s / 3_600:g} h from {begin_s / 3_600:g} h", expected)
    arrivals_rng = np.random.default_rng([terms.seed, _ARRIVALS_STREAM])
    past_rng = np.random.default_rng([terms.seed, _PAST_STREAM])
    arrivals = _counted(arrivals_rng, trace, begin_s, intervals, terms.interval_s)
    past_s = min(begin_s, _PAST_DAYS * DAY_S) // terms.look_s * terms.look_s
    past_begin_s = begin_s - past_s
    assumed = not past_s and not cold
    if assumed:
        past_s = min(trace.length_s, DAY_S) // terms.look_s * terms.look_s
        past_begin_s = trace.length_s - past_s
    looks = round(past_s / terms.look_s)
    counted = _counted(past_rng, trace, past_begin_s, looks, terms.look_s)
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
    rng: np.random.Generator, trace: DayTrace, begin_s: float, buckets: int, bucket_s: float
) -> Int64s:
    """Requests of each bucket, by the rate at its middle."""
    middles_s = begin_s + (np.arange(buckets, dtype=np.float64) + 0.5) * bucket_s
    counted: Int64s = rng.poisson(trace.rates_at(middles_s) * bucket_s)
    return counted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DayWalk:
    """One policy's day."""

    demand: DayDemand
    policy: str
    served: Float64s  # [intervals], requests, those that had waited among them
    backlog: Float64s  # [intervals], that wait at the interval's end
    late: Float64s  # [intervals], of the arrivals, those that find a backlog
    group_rates: Float64s  # [intervals], requests per second of a group that serves
    times: tuple[GroupTimes, ...]
    moved: float  # requests whose group left before they ended
    totals: HandoverTotals

    def column(self, name: str) -> Float64s:
        """One field of `GroupTimes`, [intervals]."""
        return np.array([getattr(each, name) for each in self.times])


@dataclass(eq=False)
class _Walk:
    demand: DayDemand
    curve: ReplicaCurve
    trained: TrainingYield
    handover: GroupHandover
    policy: Policy
    terms: WalkTerms

    def __post_init__(self) -> None:
        self._groups = LeasedGroups(
            trained=self.trained,
            handover=self.handover,
            group_idle_watts=self.curve.idle_watts,
        )
        intervals = len(self.demand.arrivals)
        self._served = np.zeros(intervals)
        self._backlog = np.zeros(intervals)
        self._late = np.zeros(intervals)
        self._rates = np.zeros(intervals)
        self._times: list[GroupTimes] = []
        self._history = self.demand.past
        self._changed_s = -float("inf")

    def run(self) -> DayWalk:
        arrivals = self.demand.arrivals
        per_interval = self.terms.look_intervals
        for number in range(len(arrivals)):
            if number % per_interval == 0:
                if number:
                    counted = arrivals[number - per_interval : number].sum()
                    self._history = self._history.then(float(counted) / self.terms.look_s)
                    self._forget(number * self.terms.interval_s)
                self._look(number)
            self._interval(number)
        return DayWalk(
            demand=self.demand,
            policy=str(self.policy),
            served=self._served,
            backlog=self._backlog,
            late=self._late,
            group_rates=self._rates,
            times=tuple(self._times),
            moved=self._groups.totals.left_rate_per_s * self.handover.moved_requests_per_rate_s,
            totals=self._groups.totals,
        )

    def _forget(self, now_s: float) -> None:
        """Drop an assumed past when the first day is over."""
        looks = round(now_s / self.terms.look_s)
        if self.demand.past_is_assumed and now_s >= DAY_S and len(self._history) > looks:
            seen = self._history.requests_per_s[-looks:]
            self._history = replace(self._history, requests_per_s=seen)

    def _look(self, number: int) -> None:
        now_s = number * self.terms.interval_s
        decision = self.policy.decide(self._observed(number, now_s))
        rate = float(self._rates[number - 1]) if number else 0.0
        if self._groups.want(decision.serving_groups, group_rate_per_s=rate):
            self._changed_s = now_s

    def _observed(self, number: int, now_s: float) -> Observation:
        terms, demand, groups = self.terms, self.demand, self._groups
        first = max(0, number - terms.look_intervals)
        lately = slice(first, number)
        arrived = float(demand.arrivals[lately].sum())
        if number:
            load_per_s = float(demand.arrivals[number - 1]) / terms.interval_s
        else:
            load_per_s = float(self._history.requests_per_s[-1]) if len(self._history) else 0.0
        attainment = None
        if arrived:
            shares = self.curve.share("ttft_share", self._rates[lately])
            kept = ((demand.arrivals[lately] - self._late[lately]) * shares).sum()
            attainment = float(np.clip(kept / arrived, 0.0, 1.0))
        at_job = len(groups.state.job.chips)
        return Observation(
            now_s=demand.begins.timestamp() + now_s,
            history=self._history,
            load_per_s=load_per_s,
            groups=self.trained.groups,
            serving_groups=groups.serving_or_coming,
            since_change_s=now_s - self._changed_s,
            capacity_per_group_per_s=self.curve.capacity_per_s,
            queue=int(self._backlog[number - 1]) if number else 0,
            ttft_attainment=attainment,
            drain_s=self.handover.drain_s,
            restore_s=self.handover.restore_s + float(self.trained.save_s[at_job]),
        )

    def _interval(self, number: int) -> None:
        interval_s = self.terms.interval_s
        times = self._groups.advance((number + 1) * interval_s)
        self._times.append(times)
        arrived = float(self.demand.arrivals[number])
        waiting = self._backlog[number - 1] if number else 0.0
        most = self.curve.saturated_per_s * times.serving_s
        served = min(waiting + arrived, most)
        left = waiting + arrived - served
        self._served[number] = served
        self._backlog[number] = left
        self._rates[number] = served / times.serving_s if times.serving_s else 0.0
        if left > 0:
            self._late[number] = arrived
        elif waiting > 0 and most > arrived:
            # The queue is gone when what is served beyond the arrivals has made up for it.
            self._late[number] = arrived * min(1.0, waiting / (most - arrived))


def walk(
    demand: DayDemand,
    curve: ReplicaCurve,
    trained: TrainingYield,
    handover: GroupHandover,
    policy: Policy,
    terms: WalkTerms,
) -> DayWalk:
    """Walk a policy over the demand, from all groups serving and an empty queue."""
    return _Walk(demand, curve, trained, handover, policy, terms).run()
