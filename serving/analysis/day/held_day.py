"""A walk held against the exact simulation of the same looks, with all their hand-overs.

Over a stretch the groups that serve at each look are those of the walk, so that what differs is
what a look costs and serves, and not what a policy made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from emulator.errors import ConfigError
from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_oracle import ORACLE
from serving.analysis.day.day_result import JOULES_PER_MWH, DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.exact_day import (
    ExactDay,
    ExactTerms,
    Int64s,
    Planned,
    Progress,
    exact_day,
)
from serving.analysis.day.exact_hour import BothWays, Float64s
from serving.analysis.day.late_waits import LateWaits
from serving.analysis.day.replica_run import SHOWN_PERCENTILE, TAIL, ReplicaUnderTest
from serving.policy.day_night.policy import Policy
from serving.policy.day_night.policy_text import parse_policy
from serving.simulator.machine_calls import TimedCall, drawn_losses

_EXACT: Final = 1e-6
LEAD_LOOKS: Final = 4
"""Looks before a stretch, in which the groups go from all serving to where the walk has them."""
_SLICES: Final = 20
"""Of the requests that find a queue in a part of an interval, each with its mean wait."""
SHARES: Final = ("ttft_share", "tpot_share", "both_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactQuestion:
    """What happens on an exact day beside its demand: a chip is lost every `loss_every_s` on
    average, and repaired after `repair_s`; None loses none. Raises ConfigError for times not above
    0.
    """

    loss_every_s: float | None
    repair_s: float

    def __post_init__(self) -> None:
        for name, value in (("chip-loss-every", self.loss_every_s), ("repair", self.repair_s)):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(name, value, "seconds, above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDay:
    """One machine's figures of `looks` looks from `begin_s` on, by the exact run and by the walk.

    `joules` are the chips' of all groups; percentiles of the walk are of all requests together, by
    the curve's at the rate of each interval.
    """

    policy: str
    begin_s: float
    length_s: float
    requests: int
    ttft: BothWays
    tpot: BothWays
    both: BothWays
    worst: BothWays
    ttft_p99_s: BothWays
    tpot_p99_s: BothWays
    handovers: BothWays
    moved_requests: BothWays
    joules: BothWays
    trained_tokens: BothWays
    value: BothWays


def held(result: DayResult, exact: ExactDay, *, begin_s: float, first: int, last: int) -> HeldDay:
    """Hold the walk from `begin_s` on against looks `first` to before `last` of the exact run."""
    walk, machine = result.walk, result.machine
    interval_s = walk.demand.interval_s
    length_s = (last - first) * exact.look_s
    begin, end = round(begin_s / interval_s), round((begin_s + length_s) / interval_s)
    end = min(end, len(walk.demand.arrivals))
    part, looks = slice(begin, end), slice(first, last)
    look_intervals = round(exact.look_s / interval_s)
    arrivals = walk.demand.arrivals[part]
    arrived = exact.requests.arrived[looks]
    exact_kept = exact.requests.kept[:, looks]
    walk_kept = [result.kept(name)[part] for name in SHARES]
    watts = machine.chip_watts(walk)[part]
    both = [
        _share(exact_kept[row].sum(), arrived.sum(), walk_kept[row].sum(), arrivals.sum())
        for row in range(len(SHARES))
    ]
    joules = BothWays(
        exact=float(exact.column("joules")[looks].sum()),
        walked=float((watts - machine.left_over_watts).sum() * interval_s),
    )
    trained = BothWays(
        exact=float(exact.column("trained_tokens")[looks].sum()),
        walked=float(walk.column("tokens")[part].sum()),
    )
    worst = _worst_of_walk(walk_kept[2], arrivals, look_intervals)
    return HeldDay(
        policy=result.policy,
        begin_s=begin_s,
        length_s=length_s,
        requests=int(arrived.sum()),
        ttft=both[0],
        tpot=both[1],
        both=both[2],
        worst=BothWays(exact=_lowest(exact_kept[2], arrived), walked=worst),
        ttft_p99_s=BothWays(
            exact=exact.requests.percentile_s(0, looks, SHOWN_PERCENTILE),
            walked=walked_ttft_p99_s(result, part),
        ),
        tpot_p99_s=BothWays(
            exact=exact.requests.percentile_s(1, looks, SHOWN_PERCENTILE),
            walked=_walked_tpot_p99_s(result, part),
        ),
        handovers=BothWays(
            exact=float(exact.column("handovers")[looks].sum()),
            walked=float(sum(walk.handovers[begin // look_intervals : -(-end // look_intervals)])),
        ),
        moved_requests=BothWays(
            exact=float(exact.column("moved_requests")[looks].sum()),
            walked=float(walk.moved[part].sum()),
        ),
        joules=joules,
        trained_tokens=trained,
        value=BothWays(
            exact=_value(result, float(arrived.sum()), trained.exact, joules.exact, length_s),
            walked=_value(
                result, float(walk.served[part].sum()), trained.walked, joules.walked, length_s
            ),
        ),
    )


def held_day(
    result: DayResult,
    replica: ReplicaUnderTest,
    terms: ExactTerms,
    question: ExactQuestion,
    *,
    progress: Progress,
) -> HeldDay:
    """Simulate a whole day exactly, under its policy, and hold the walk against it.

    A policy that knows the day, the oracle, has decided before. Raises as `exact_day`.
    """
    demand = result.walk.demand
    policy: Policy = Planned(
        begins_s=demand.begins.timestamp(), look_s=terms.look_s, serving=result.walk.wanted
    )
    if result.policy != ORACLE:
        policy = parse_policy(result.policy)
    calls: Sequence[TimedCall] = ()
    if question.loss_every_s is not None:
        partition = replica.candidate.partition
        calls = drawn_losses(
            [partition] * replica.engines(terms.groups),
            every_s=question.loss_every_s,
            repair_s=question.repair_s,
            seed=terms.seed,
        )
    exact = exact_day(replica, demand, terms, policy, calls=calls, progress=progress)
    return held(result, exact, begin_s=0.0, first=0, last=len(exact.requests.arrived))


def held_stretch(
    result: DayResult,
    replica: ReplicaUnderTest,
    terms: ExactTerms,
    *,
    begin_s: float,
    length_s: float = HOUR_S,
    calls: Sequence[TimedCall] = (),
) -> HeldDay:
    """Simulate a part of a day exactly, with the walk's groups at each look, and hold the walk
    against it; `begin_s` is a look's. Raises ConfigError for a time outside of the day.
    """
    demand, interval_s = result.walk.demand, result.walk.demand.interval_s
    look_intervals = round(terms.look_s / interval_s)
    first, last = round(begin_s / terms.look_s), round((begin_s + length_s) / terms.look_s)
    if not 0 <= first < last <= len(demand.arrivals) // look_intervals:
        expected = f"within the {demand.length_s / HOUR_S:g} hours of the day"
        raise ConfigError("check-hour", begin_s / HOUR_S, expected)
    lead = min(first, LEAD_LOOKS)
    part = _part(demand, (first - lead) * look_intervals, (last + 1) * look_intervals)
    plan = Planned(
        begins_s=part.begins.timestamp(),
        look_s=terms.look_s,
        serving=result.walk.wanted[first - lead : last + 1],
    )
    exact = exact_day(replica, part, terms, plan, calls=calls)
    return held(result, exact, begin_s=begin_s, first=lead, last=lead + last - first)


def _part(demand: DayDemand, begin: int, end: int) -> DayDemand:
    """Intervals of a demand."""
    arrivals = demand.arrivals[begin:end]
    return replace(demand, begins=demand.at(begin), arrivals=arrivals)


def _share(kept: float, came: float, walked: float, walked_came: float) -> BothWays:
    return BothWays(
        exact=float(kept / came) if came else 1.0,
        walked=max(0.0, float(walked / walked_came)) if walked_came else 1.0,
    )


def _lowest(kept: Float64s | Int64s, came: Float64s | Int64s) -> float:
    """The lowest share of a look with requests."""
    shares = np.divide(kept, came, out=np.ones(len(came)), where=came > 0)
    return float(shares.min(initial=1.0))


def _worst_of_walk(kept: Float64s, came: Int64s, look_intervals: int) -> float:
    at = np.arange(0, len(came), look_intervals)
    sums = (np.add.reduceat(each, at) for each in (kept, came))
    return max(0.0, _lowest(*sums))


def walked_ttft_p99_s(result: DayResult, part: slice) -> float:
    """Of all that come in some intervals: those that find a queue wait for it first, and then as
    long as others do at the highest rate within the target.
    """
    walk, curve = result.walk, result.machine.curve
    rates, serving = walk.arrival_rates[part], walk.serving[part]
    late = LateWaits.of(walk, curve).within(part.start, part.stop)
    least = np.minimum(rates[late.intervals], curve.least_capacity_per_s)
    others = curve.tail("ttft_tail_s", least, serving[late.intervals])  # [TAIL, parts]
    waited = others[:, None] + late.sliced(_SLICES)  # [TAIL, slices, parts]
    waits = np.bincount(late.intervals, late.requests, minlength=len(rates))
    at_once = walk.demand.arrivals[part] - waits
    tails = np.hstack([curve.tail("ttft_tail_s", rates, serving), waited.reshape(len(waited), -1)])
    requests = np.append(at_once, np.tile(late.requests / _SLICES, _SLICES))
    return percentile_of_all(tails, requests, SHOWN_PERCENTILE)


def _walked_tpot_p99_s(result: DayResult, part: slice) -> float:
    walk = result.walk
    tails = result.machine.curve.tail("tpot_tail_s", walk.group_rates[part], walk.serving[part])
    return percentile_of_all(tails, walk.served[part], SHOWN_PERCENTILE)


def percentile_of_all(tails: Float64s, requests: Float64s, q: float) -> float:
    """Of intervals' requests together, [intervals], whose times have the percentiles `tails`,
    [TAIL, intervals], and between them, and from 0 on, go in straight lines; 0 without requests.
    """
    if not requests.sum():
        return 0.0
    lines = np.vstack([np.zeros(len(requests)), tails]).T  # [intervals, percentiles]
    known = np.array([0.0, *TAIL])
    low, high = 0.0, float(tails.max())
    while high - low > _EXACT * high:
        middle = (low + high) / 2
        below = np.array([np.interp(middle, line, known, right=100.0) for line in lines])
        if (below * requests).sum() < q * requests.sum():
            low = middle
        else:
            high = middle
    return high


def _value(
    result: DayResult, requests: float, tokens: float, joules: float, length_s: float
) -> float:
    """As `DayResult.value`, of chips that draw `joules` in a stretch."""
    machine = result.machine
    watts = np.array([joules / length_s + machine.left_over_watts])
    mwh = float(machine.facility_watts(watts)[0]) * length_s / JOULES_PER_MWH
    return machine.value(requests, tokens, mwh)
