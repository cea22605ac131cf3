"""A policy walked over days, minute by minute, on the simulated curves.

Requests are spread evenly over the serving groups, at the curve's latencies. Those above saturation
wait as a backlog, first come first served, and are late if they wait for longer than the curve's
patience; those that find none have the latencies of the rate at which they come. The policy sees
observable figures alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_trace import DAY_S
from serving.analysis.day.fluid_queue import judged_rates, late_share, queue_step
from serving.analysis.day.leased_groups import GroupTimes, HandoverTotals
from serving.analysis.day.look_outcomes import LookOutcome, LookOutcomes
from serving.analysis.day.partition_curve import GroupCurve
from serving.analysis.day.training_yield import GroupHandover
from serving.policy.day_night.history import DemandHistory
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.policy import Policy

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

Choice = Callable[[int, int, float], int]
"""Serving groups by the look's number, the state of the groups and the backlog."""

_Served = tuple[float, float, Sequence[tuple[float, float, float]]]
"""Of an interval: seconds that groups serve, how many do, and of each part with other groups its
share of the interval, the requests that they can serve, and those in a second.
"""


class GroupOutcomes(Protocol):
    """What a number of serving groups does to them: of a machine's, or one model's of a fleet."""

    handover: GroupHandover
    interval_s: float

    @property
    def groups(self) -> int:
        """That can serve."""
        ...

    @property
    def job_groups_min(self) -> int:
        """Fewest leased groups that train."""
        ...

    @property
    def look_intervals(self) -> int:
        """Intervals of a whole look."""
        ...

    def serving_or_coming(self, state: int) -> int:
        """Groups that serve or return."""
        ...

    def save_s(self, state: int) -> float:
        """Seconds that a job needs before a group returns."""
        ...

    def outcome(self, state: int, serving: int, intervals: int) -> LookOutcome:
        """Of `serving` groups wanted in a state, for `intervals`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DayWalk:
    """One policy's day."""

    demand: DayDemand
    served: Float64s  # [intervals], requests, those that had waited among them
    serving: Float64s  # [intervals], mean groups that serve
    backlog: Float64s  # [intervals], that wait at the interval's end
    late: Float64s  # [intervals], of the arrivals, those that wait too long
    group_rates: Float64s  # [intervals], requests per second of a group that serves
    moved: Float64s  # [intervals], requests whose group left before they ended
    times: tuple[GroupTimes, ...]  # [intervals]
    totals: HandoverTotals
    wanted: tuple[int, ...]  # serving groups at each look
    handovers: tuple[int, ...]  # groups that left or came back until the next look, at each look

    @property
    def arrival_rates(self) -> Float64s:
        """Requests per second that come to a group that serves, [intervals]."""
        return self.demand.arrivals / (self.serving * self.demand.interval_s)

    def column(self, name: str) -> Float64s:
        """One field of `GroupTimes`, [intervals]."""
        return np.fromiter(map(attrgetter(name), self.times), np.float64, len(self.times))


class WalkUnderWay:
    """Mutable; from all groups serving and an empty queue, look after look."""

    def __init__(
        self,
        demand: DayDemand,
        curve: GroupCurve,
        outcomes: GroupOutcomes,
        machines: Int64s | None = None,
    ) -> None:
        self.demand = demand
        self.outcomes = outcomes
        self.state = 0
        self.number = 0  # of the next interval
        self.changed_s = -float("inf")
        intervals = len(demand.arrivals)
        self.backlog = np.zeros(intervals)
        self.late = np.zeros(intervals)
        self.rates = np.zeros(intervals)
        self.serving = np.zeros(intervals)
        self._served = np.zeros(intervals)
        self._moved = np.zeros(intervals)
        self._curve = curve
        self._arrivals: list[float] = demand.arrivals.astype(np.float64).tolist()
        self._waiting = 0.0
        self._machines = machines
        self._length = outcomes.look_intervals
        self._outcomes: list[LookOutcome] = []
        self._wanted: list[int] = []
        self._look_rates: list[float] = []  # of a group as each look began
        self._most: dict[LookOutcome, Sequence[_Served]] = {}

    @property
    def looks(self) -> int:
        """Of the whole demand."""
        return -(-len(self._arrivals) // self._length)

    def run(self, choose: Choice) -> DayWalk:
        """A choice at each look."""
        for look in range(self.looks):
            self.go(look, self.ask(look, choose))
        return self.ended()

    def ask(self, look: int, choose: Choice) -> int:
        """The choice at a look."""
        first = look * self._length
        self.number = first
        self._divide_backlog(look)
        self._look_rates.append(float(self.rates[first - 1]) if first else 0.0)
        return choose(look, self.state, self._waiting)

    def intervals_of(self, look: int) -> int:
        """Of a look, or what is left of the day for the last one."""
        return min(self._length, len(self._arrivals) - look * self._length)

    def go(self, look: int, wanted: int) -> None:
        """Until the next look, with so many serving groups wanted."""
        self._wanted.append(wanted)
        self._look(look, self.intervals_of(look))

    def ended(self) -> DayWalk:
        """The day, when all looks have gone by."""
        totals = HandoverTotals()
        for outcome, times in Counter(self._outcomes).items():
            totals.add(outcome.totals, times)
        changed = (outcome.totals for outcome in self._outcomes)
        return DayWalk(
            demand=self.demand,
            served=self._served,
            serving=self.serving,
            backlog=self.backlog,
            late=self.late,
            group_rates=self.rates,
            moved=self._moved * self.outcomes.handover.moved_requests_per_rate_s,
            times=tuple(chain.from_iterable(outcome.times for outcome in self._outcomes)),
            totals=totals,
            wanted=tuple(self._wanted),
            handovers=tuple(each.left + each.came_back for each in changed),
        )

    def _divide_backlog(self, look: int) -> None:
        """All that wait, over the machines that there are now."""
        if look and self._waiting and self._machines is not None:
            before, now = self._machines[look - 1 : look + 1].tolist()
            self._waiting *= before / now

    def _look(self, look: int, intervals: int) -> None:
        outcome = self.outcomes.outcome(self.state, self._wanted[-1], intervals)
        if outcome.changed:
            self.changed_s = self.number * self.outcomes.interval_s
        self._outcomes.append(outcome)
        for left in outcome.left:
            rate_per_s = self._look_rates[look - left.looks_ago]
            self._moved[self.number + left.interval] += left.count * rate_per_s
        self._serve(self._most_of(outcome))
        self.state = outcome.after

    def _most_of(self, outcome: LookOutcome) -> Sequence[_Served]:
        """By interval."""
        if outcome not in self._most:
            self._most[outcome] = [
                (
                    times.serving_s,
                    times.serving_s / self.outcomes.interval_s,
                    [self._part_most(share, groups) for share, groups in times.shares],
                )
                for times in outcome.times
            ]
        return self._most[outcome]

    def _part_most(self, share: float, groups: int) -> tuple[float, float, float]:
        per_s = float(self._curve.saturated_at(groups)) * groups
        return share, per_s * share * self.outcomes.interval_s, per_s

    def _serve(self, intervals: Sequence[_Served]) -> None:
        """From the present interval on."""
        waiting = self._waiting
        for number, (serving_s, serving, parts) in enumerate(intervals, start=self.number):
            arrived = self._arrivals[number]
            served = late = 0.0
            for share, most, per_s in parts:
                came = arrived * share
                if waiting == 0 and came <= most:
                    served += came
                    continue
                before = np.array([waiting])
                part_served, left, found = queue_step(before, came, np.array([most]))
                waits = late_share(before / per_s, left / per_s, self._curve.patience_s)
                served += float(part_served[0])
                late += float((found * waits)[0])
                waiting = float(left[0])
            self.serving[number] = serving
            self._served[number] = served
            self.rates[number] = served / serving_s if serving_s else 0.0
            self.backlog[number] = waiting
            self.late[number] = late
        self._waiting = waiting


class Observer:
    """What a policy sees of a walk, and its answer."""

    def __init__(self, walk: WalkUnderWay, curve: GroupCurve, policy: Policy) -> None:
        self._walk = walk
        self._curve = curve
        self._policy = policy
        self._history = walk.demand.past

    @property
    def history(self) -> DemandHistory:
        """As the policy has it."""
        return self._history

    def choose(self, look: int, state: int, backlog: float) -> int:
        """The policy's serving groups, at least those that an engine keeps."""
        length, interval_s = self._walk.outcomes.look_intervals, self._walk.outcomes.interval_s
        number = look * length
        if look:
            counted = self._walk.demand.arrivals[number - length : number].sum()
            self._history = self._history.then(float(counted) / (length * interval_s))
            self._forget(number * interval_s)
        decision = self._policy.decide(self._observed(state, backlog))
        return max(self._walk.outcomes.handover.groups_min, decision.serving_groups)

    def _forget(self, now_s: float) -> None:
        """Drop an assumed past when the first day is over."""
        looks = round(now_s / self._history.bucket_s)
        assumed = self._walk.demand.past_is_assumed
        if assumed and now_s >= DAY_S and len(self._history) > looks:
            seen = self._history.requests_per_s[-looks:]
            self._history = replace(self._history, requests_per_s=seen)

    def _observed(self, state: int, backlog: float) -> Observation:
        walk, demand, outcomes = self._walk, self._walk.demand, self._walk.outcomes
        number, interval_s = walk.number, outcomes.interval_s
        lately = slice(max(0, number - outcomes.look_intervals), number)
        if number:
            load_per_s = float(demand.arrivals[number - 1]) / interval_s
        else:
            load_per_s = float(self._history.requests_per_s[-1]) if len(self._history) else 0.0
        handover = outcomes.handover
        now_s = number * interval_s
        return Observation(
            now_s=demand.begins.timestamp() + now_s,
            history=self._history,
            load_per_s=load_per_s,
            groups=outcomes.groups,
            serving_groups=outcomes.serving_or_coming(state),
            since_change_s=now_s - walk.changed_s,
            capacity_per_group_per_s=self._curve.least_capacity_per_s,
            groups_min=handover.groups_min,
            queue=int(backlog),
            ttft_attainment=self._attainment("ttft_share", lately),
            tpot_attainment=self._attainment("tpot_share", lately),
            drain_s=handover.drain_s,
            restore_s=handover.restore_s + outcomes.save_s(state),
            job_groups_min=outcomes.job_groups_min,
        )

    def _attainment(self, name: str, lately: slice) -> float | None:
        """The share of the requests of some intervals that kept a share's limits; None of none."""
        walk = self._walk
        arrivals = walk.demand.arrivals[lately]
        arrived = float(arrivals.sum())
        if not arrived:
            return None
        kept = kept_requests(
            self._curve,
            name,
            arrivals=arrivals,
            late=walk.late[lately],
            served_rates=walk.rates[lately],
            arrival_rates=arrivals / (walk.serving[lately] * walk.outcomes.interval_s),
            serving=walk.serving[lately],
        )
        return min(max(float(kept.sum()) / arrived, 0.0), 1.0)


def kept_requests(
    curve: GroupCurve,
    name: str,
    *,
    arrivals: Int64s,
    late: Float64s,
    served_rates: Float64s,
    arrival_rates: Float64s,
    serving: Float64s,
) -> Float64s:
    """Of a walk's arrivals, those that keep the limits of `ttft_share`, `tpot_share` or
    `both_share`; all [intervals].

    Late ones miss TTFT alone. Those that come once a queue is gone find the rate at which they
    come; TPOT is of all that are served.
    """
    if name == "tpot_share":
        in_time: Float64s = arrivals * curve.share(name, served_rates, serving)
        return in_time
    judged = judged_rates(curve, arrival_rates, serving)
    kept: Float64s = (arrivals - late) * curve.share(name, judged, serving)
    return kept


def walk(
    demand: DayDemand,
    curve: GroupCurve,
    outcomes: GroupOutcomes,
    policy: Policy,
    *,
    machines: Int64s | None = None,
) -> DayWalk:
    """Walk a policy over the demand, from all groups serving and an empty queue.

    One machine's demand; where its fellows change in number, `machines` [looks], above 0, what
    waits is divided over them anew.
    """
    going = WalkUnderWay(demand, curve, outcomes, machines)
    return going.run(Observer(going, curve, policy).choose)


def walk_choices(
    demand: DayDemand, curve: GroupCurve, outcomes: LookOutcomes, choose: Choice
) -> DayWalk:
    """Walk what `choose` says at each look, as `walk` does a policy."""
    return WalkUnderWay(demand, curve, outcomes).run(choose)
