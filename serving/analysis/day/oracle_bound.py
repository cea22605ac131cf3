"""An upper bound on what any policy can make of a day, by a dynamic programme over its looks.

A plan is a number of serving groups at each look. Its value is (served + trained) / MWh, as in
`DayResult.value`, with every cost of the walk: drains, reads of weights, starts and saves of the
job. It is feasible if at least `kept_min` requests of the day keep the target.

For a price of a kept request, max over all plans of (value + price * (kept - kept_min)) / MWh is at
least the value of every feasible plan; the lowest such maximum over all prices is the bound. For
one price, Dinkelbach's method turns the ratio into sums, which a backward recursion over (look,
state of the groups, backlog) maximises exactly, but for a relaxation that can only raise it:
the backlog is rounded down at each look, to a grid that begins at what is left when all groups
always serve, below which none can be. A lower one is never worse: requests are in time earlier,
groups are less loaded, and draw no more (of the curve's power its lower envelope counts, which
never falls with the rate).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_result import JOULES_PER_MWH, DayMachine
from serving.analysis.day.fluid_queue import judged_rates, late_share, queue_step
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.partition_curve import GroupCurve

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

STATES_MAX: Final = 400
"""Of the groups; more when hand-overs last over several looks, and then there is no bound."""
_ENTRIES_MAX: Final = 3_000_000
_BACKLOGS_MAX: Final = 12
_TOGETHER: Final = 16  # looks
_PRICES_MAX: Final = 40
_EXACT: Final = 1e-9
_NEAR: Final = 1e-6
"""Of a value: a bound so near to what some mixture of plans reaches is looked for no further."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wishes:
    """What each wish makes of each state of the groups in `intervals`; wish n is n + 1 serving.

    Many lead to the same times of the groups that serve, which are the rows of `serving_s`,
    `drawing_s` and `parts`: of each part of an interval in which other groups serve, its share of
    the interval, 0 behind the last one, and how many groups do.
    """

    after: Int64s  # [wishes, states]
    tokens: Float64s  # [wishes, states]
    joules: Float64s  # [wishes, states], of groups that neither serve nor leave
    row: Int64s  # [wishes, states]
    serving_s: Float64s  # [rows, intervals], of all groups
    drawing_s: Float64s  # [rows, intervals], with those that leave
    parts: Float64s  # [rows, intervals, parts, 2]

    @classmethod
    def of(cls, outcomes: LookOutcomes, states: int, intervals: int) -> "Wishes":
        """Of the first `states`."""
        groups = outcomes.trained.groups
        found = [
            [outcomes.outcome(state, wish + 1, intervals) for state in range(states)]
            for wish in range(groups)
        ]

        def each(of: str) -> Float64s:
            return np.array([[[getattr(t, of) for t in one.times] for one in row] for row in found])

        serving_s = each("serving_s")
        shares = [[[t.shares for t in one.times] for one in row] for row in found]
        most = max(len(each) for row in shares for one in row for each in one)
        parts = np.array(
            [[[each + [(0.0, 1)] * (most - len(each)) for each in o] for o in r] for r in shares]
        )  # [wishes, states, intervals, parts, 2]
        flat = parts.reshape(groups, states, -1)
        both = np.concatenate([serving_s, serving_s + each("leaving_s"), flat], axis=2)
        rows, row = np.unique(both.reshape(groups * states, -1), axis=0, return_inverse=True)
        return cls(
            after=np.array([[one.after for one in row] for row in found]),
            tokens=each("tokens").sum(axis=2),
            joules=each("joules").sum(axis=2),
            row=row.reshape(groups, states),
            serving_s=rows[:, :intervals],
            drawing_s=rows[:, intervals : 2 * intervals],
            parts=rows[:, 2 * intervals :].reshape(len(rows), intervals, most, 2),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """A look's rewards and where it leads.

    `then`: the state and the backlog at its end, as one number: state * backlogs + backlog.
    """

    kept: Float64s  # [rows, backlogs]
    mwh: Float64s  # [rows, backlogs], of a machine whose groups serve, leave or take nothing
    more_mwh: Float64s  # [wishes, states], of the other groups
    then: Int64s  # [wishes, states, backlogs]
    wishes: Wishes

    @property
    def least_mwh(self) -> float:
        """That any wish takes."""
        return float(self.mwh.min() + self.more_mwh.min())


def _looks(
    machine: DayMachine,
    wishes: Wishes,
    arrivals: Float64s,
    backlogs: Float64s,
    *,
    interval_s: float,
) -> Iterator[Look]:
    """Of `arrivals` [looks, intervals]; `backlogs` [looks + 1, backlogs] as each look begins and as
    the last one ends.
    """
    curve: GroupCurve = machine.curve
    looks, intervals = arrivals.shape
    shape = (looks, len(wishes.serving_s), backlogs.shape[1])
    waiting = np.broadcast_to(backlogs[:-1, None], shape)
    kept, joules = np.zeros(shape), np.zeros(shape)
    for interval in range(intervals):
        arrived = arrivals[:, interval, None, None]
        serving_s = wishes.serving_s[:, interval, None]
        serving = serving_s / interval_s
        served, late = np.zeros(shape), np.zeros(shape)
        for part in wishes.parts[:, interval].swapaxes(0, 1):  # [rows, 2]
            share, groups = part[:, :1], part[:, 1:]
            if not share.any():
                break
            per_s = curve.saturated_at(groups) * groups
            first_s = waiting / per_s
            part_served, waiting, found = queue_step(
                waiting, arrived * share, per_s * share * interval_s
            )
            served += part_served
            late += found * late_share(first_s, waiting / per_s, curve.patience_s)
        judged = judged_rates(curve, arrived / serving_s, serving)
        kept += (arrived - late) * curve.share("both_share", judged, serving)
        watts = curve.least_chip_watts(served / serving_s, serving)
        joules += watts * wishes.drawing_s[:, interval, None]
    length_s = intervals * interval_s

    def mwh(joules: Float64s) -> Float64s:
        mean_watts = joules / length_s + machine.left_over_watts
        energy: Float64s = machine.facility_watts(mean_watts) * length_s / JOULES_PER_MWH
        return energy

    serving_mwh, more_mwh = mwh(joules), mwh(wishes.joules) - mwh(np.zeros(1))
    for look, then in enumerate(backlogs[1:]):
        end = _rounded_down(waiting[look], then)  # [rows, backlogs]
        yield Look(
            kept=kept[look],
            mwh=serving_mwh[look],
            more_mwh=more_mwh,
            then=wishes.after[:, :, None] * len(then) + end[wishes.row],
            wishes=wishes,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedPlan:
    """The best plan at a price, as the relaxed day sees it.

    Attributes:
        worth: of what comes from each look on, [looks + 1, states, backlogs].
        value: served and trained, in the machine's unit.
        kept: requests within the target.
    """

    day: "PlannedDay"
    ratio: float
    price: float
    worth: Float64s
    value: float
    kept: float
    mwh: float

    def choose(self, look: int, state: int, backlog: float) -> int:
        """The plan's serving groups; a `Choice`."""
        number = int(_rounded_down(np.array(backlog), self.day.backlogs[look]))
        return 1 + self.day.best_wish(
            look, state, number, self.worth[look + 1], ratio=self.ratio, price=self.price
        )


class PlannedDay:
    """A day as the recursion sees it; tables of at most some hundred MB.

    Who waits is late, but for those of the interval in which a queue begins and those who wait for
    no longer than the curve's patience. So of plans that keep `kept_min` requests none has a longer
    queue than the rest and these, and the grid ends there.
    """

    def __init__(
        self,
        demand: DayDemand,
        machine: DayMachine,
        outcomes: LookOutcomes,
        states: int,
        *,
        kept_min: float = 0.0,
    ) -> None:
        self._machine = machine
        arrivals = demand.arrivals.astype(np.float64)
        self._requests = float(arrivals.sum())
        length = outcomes.look_intervals
        firsts = range(0, len(arrivals), length)
        entries = len(firsts) * states * machine.groups
        count = min(_BACKLOGS_MAX, max(1, _ENTRIES_MAX // entries))
        curve, interval_s = machine.curve, demand.interval_s
        interval_most = curve.saturated_per_s * interval_s  # of a group
        numbers = np.arange(1, machine.groups + 1, dtype=np.float64)
        most = float((numbers * curve.saturated_at(numbers)).max()) * interval_s
        least = _least_backlogs(arrivals, most)[[*firsts, len(arrivals)]]
        longest = self._requests - max(kept_min, 0.0) + float(arrivals.max(initial=0.0))
        longest += curve.patience_s * most / interval_s
        self.backlogs = least[:, None] + _grid(count, interval_most, longest)
        self._looks = [*self._tables(arrivals, demand.interval_s, outcomes, states)]
        self.least_mwh = sum(look.least_mwh for look in self._looks)

    def _tables(
        self, arrivals: Float64s, interval_s: float, outcomes: LookOutcomes, states: int
    ) -> Iterator[Look]:
        """Some at a time, whose tables a processor's cache holds; the last may be a part of one."""
        length = outcomes.look_intervals
        whole, rest = divmod(len(arrivals), length)
        parts = [
            (range(first, min(first + _TOGETHER, whole)), length)
            for first in range(0, whole, _TOGETHER)
        ]
        parts += [(range(whole, whole + 1), rest)] if rest else []
        known: dict[int, Wishes] = {}
        for looks, intervals in parts:
            if intervals not in known:
                known[intervals] = Wishes.of(outcomes, states, intervals)
            begin = looks.start * length
            part = arrivals[begin : begin + len(looks) * intervals].reshape(-1, intervals)
            backlogs = self.backlogs[looks.start : looks.stop + 1]
            yield from _looks(
                self._machine, known[intervals], part, backlogs, interval_s=interval_s
            )

    def best(self, *, ratio: float, price: float) -> PricedPlan:
        """Maximises value - ratio * MWh + price * kept requests."""
        backlogs, (_, states) = self.backlogs, self._looks[0].wishes.after.shape
        worth = np.empty((len(backlogs), states, backlogs.shape[1]))
        # Requests count when they arrive; those that still wait in the end are taken off.
        worth[-1] = -self._machine.request_value * backlogs[-1]
        for number in range(len(self._looks) - 1, -1, -1):
            look = self._looks[number]
            ways = (price * look.kept - ratio * look.mwh).take(look.wishes.row, axis=0)
            ways += (self._trained(look.wishes) - ratio * look.more_mwh)[:, :, None]
            ways += worth[number + 1].take(look.then)
            ways.max(axis=0, out=worth[number])
        return self._followed(worth, ratio, price)

    def _trained(self, wishes: Wishes) -> Float64s:
        return self._machine.token_value * wishes.tokens

    def best_wish(
        self, look: int, state: int, backlog: int, worth: Float64s, *, ratio: float, price: float
    ) -> int:
        """In a state with a backlog by its number, by what comes after it is worth."""
        of = self._looks[look]
        row, trained = of.wishes.row[:, state], self._trained(of.wishes)[:, state]
        ways = trained - ratio * (of.mwh[row, backlog] + of.more_mwh[:, state])
        ways += price * of.kept[row, backlog] + worth.take(of.then[:, state, backlog])
        return int(ways.argmax())

    def _followed(self, worth: Float64s, ratio: float, price: float) -> PricedPlan:
        state, backlog, count = 0, 0, self.backlogs.shape[1]
        tokens = kept = mwh = 0.0
        for number, look in enumerate(self._looks):
            wish = self.best_wish(
                number, state, backlog, worth[number + 1], ratio=ratio, price=price
            )
            row = look.wishes.row[wish, state]
            tokens += float(look.wishes.tokens[wish, state])
            kept += float(look.kept[row, backlog])
            mwh += float(look.mwh[row, backlog] + look.more_mwh[wish, state])
            state, backlog = divmod(int(look.then[wish, state, backlog]), count)
        served = self._requests - float(self.backlogs[-1, backlog])
        machine = self._machine
        return PricedPlan(
            day=self,
            ratio=ratio,
            price=price,
            worth=worth,
            value=machine.request_value * served + machine.token_value * tokens,
            kept=kept,
            mwh=mwh,
        )


def _least_backlogs(arrivals: Float64s, most: float) -> Float64s:
    """What waits before each interval and after the last if `most` are served in each, [n + 1]."""
    waiting, least = 0.0, [0.0]
    for arrived in arrivals.tolist():
        waiting = max(0.0, waiting + arrived - most)
        least.append(waiting)
    return np.array(least)


def _rounded_down(waiting: Float64s, backlogs: Float64s) -> Int64s:
    """The number of the highest of `backlogs` that is not above; 0 for less than all."""
    number: Int64s = np.searchsorted(backlogs, waiting, side="right") - 1
    return np.maximum(number, 0)


def _grid(count: int, least: float, longest: float) -> Float64s:
    """Backlogs from 0 on, the others in equal ratios from `least` up to the longest."""
    if count < 2:
        return np.zeros(1)
    most = max(longest, 2.0 * least)
    return np.concatenate([[0.0], np.geomspace(least, most, count - 1)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OracleBound:
    """No feasible plan has a higher value per MWh; two plans that come near, one of each side.

    `generous` may keep fewer requests than it must, `careful` keeps as many.
    """

    value_per_mwh: float
    generous: PricedPlan
    careful: PricedPlan | None


def oracle_bound(day: PlannedDay, *, kept_min: float, known: float) -> OracleBound:
    """The bound for plans that keep `kept_min` requests; `known`: the value of one of them.

    Each plan is a line over the price: (value + price * (kept - kept_min)) / MWh. The maximum of
    all is convex, and its lowest point lies where a rising line meets a falling one. There the best
    plan is another line above, or there is none.
    """
    bound, generous = _highest(day, kept_min, known)
    if generous.kept >= kept_min:
        return OracleBound(value_per_mwh=bound, generous=generous, careful=generous)
    careful: PricedPlan | None = None
    for _ in range(_PRICES_MAX):
        high, rise = known, 0.0
        if careful is not None:
            high = careful.value / careful.mwh
            rise = (careful.kept - kept_min) / careful.mwh
        low, fall = generous.value / generous.mwh, (generous.kept - kept_min) / generous.mwh
        if low <= high:
            break
        price = (low - high) / (rise - fall)
        meeting = high + rise * price
        plan = day.best(ratio=meeting, price=price)
        bound = min(bound, _bound_by(day, plan, kept_min))
        if bound <= meeting + _NEAR * abs(meeting):
            break
        if plan.kept >= kept_min:
            careful = plan
        else:
            generous = plan
    return OracleBound(value_per_mwh=bound, generous=generous, careful=careful)


def _highest(day: PlannedDay, kept_min: float, ratio: float) -> tuple[float, PricedPlan]:
    """A bound and a plan at no price, from a `ratio` that some plan has.

    By Dinkelbach's method, to its end where the plan keeps enough.
    """
    bound = float("inf")
    while True:
        plan = day.best(ratio=ratio, price=0.0)
        bound = min(bound, _bound_by(day, plan, kept_min))
        if plan.kept < kept_min or bound <= ratio + _NEAR * abs(ratio):
            return bound, plan
        better = plan.value / plan.mwh
        if better <= ratio:
            return bound, plan
        ratio = better


def _bound_by(day: PlannedDay, plan: PricedPlan, kept_min: float) -> float:
    """What no ratio exceeds, if `plan` is the best at its price: what any has beyond the plan's
    ratio is spread over at least the least MWh.
    """
    # Without a price it may be that no request has to be kept, a bound of -inf.
    spare = plan.price * (plan.kept - kept_min) if plan.price else 0.0
    beyond = max(0.0, plan.value + spare - plan.ratio * plan.mwh)
    return plan.ratio + beyond / day.least_mwh + 10 * _EXACT * abs(plan.ratio)
