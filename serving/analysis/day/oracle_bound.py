"""An upper bound on what any policy can make of a day, by a dynamic programme over its looks.

A plan is a number of serving groups at each look. Its value is (served + trained) / MWh, as in
`DayResult.value`, with every cost of the walk: drains, reads of weights, starts and saves of the
job. It is feasible if at least `kept_min` requests of the day keep the target.

For a price of a kept request, max over all plans of (value + price * (kept - kept_min)) / MWh is at
least the value of every feasible plan; the lowest such maximum over all prices is the bound. For
one price, Dinkelbach's method turns the ratio into sums, which a backward recursion over (look,
state of the groups, backlog) maximises exactly, but for three relaxations that can only raise it:

- The backlog is rounded down at each look, to a grid that begins at what is left when all groups
  always serve, below which none can be. A lower one is never worse: requests are in time earlier,
  groups are less loaded, and draw no more (of the curve's power its lower envelope counts, which
  never falls with the rate).
- What a killed job trained before the look in which it is killed is not lost.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_result import JOULES_PER_MWH, DayMachine
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.partition_curve import GroupCurve

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

STATES_MAX: Final = 400
"""Of the groups; more when hand-overs last over several looks, and then there is no bound."""
_ENTRIES_MAX: Final = 3_000_000
_BACKLOGS_MAX: Final = 24
_PRICES_MAX: Final = 40
_EXACT: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wishes:
    """What each wish makes of each state of the groups in `intervals`.

    [states, wishes] unless said; wish n is n + 1 serving groups.
    """

    after: Int64s
    tokens: Float64s
    joules: Float64s  # of groups that neither serve nor leave
    serving_s: Float64s  # [states, wishes, intervals], of all groups
    drawing_s: Float64s  # [states, wishes, intervals], with those that leave

    @classmethod
    def of(cls, outcomes: LookOutcomes, states: int, intervals: int) -> "Wishes":
        """Of the first `states`."""
        groups = outcomes.trained.groups
        found = [
            [outcomes.outcome(state, wish + 1, intervals) for wish in range(groups)]
            for state in range(states)
        ]

        def each(of: str) -> Float64s:
            return np.array([[[getattr(t, of) for t in one.times] for one in row] for row in found])

        serving_s = each("serving_s")
        undone = [[one.totals.tokens_undone for one in row] for row in found]
        return cls(
            after=np.array([[one.after for one in row] for row in found]),
            tokens=each("tokens").sum(axis=2) - np.array(undone),
            joules=each("joules").sum(axis=2),
            serving_s=serving_s,
            drawing_s=serving_s + each("leaving_s"),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """A look's rewards and where it leads, [states, wishes, backlogs].

    `then`: the state and the backlog at its end, as one number: state * backlogs + backlog.
    """

    kept: Float64s
    mwh: Float64s
    then: Int64s
    wishes: Wishes


def queue_step(
    waiting: Float64s, arrived: float, most: Float64s
) -> tuple[Float64s, Float64s, Float64s]:
    """Served, left and late requests of an interval, as `day_walk` counts them one by one."""
    total = waiting + arrived
    served = np.minimum(total, most)
    left = total - served
    spare = np.where(most > arrived, most - arrived, 1.0)
    ending = np.where((waiting > 0) & (most > arrived), np.minimum(1.0, waiting / spare), 0.0)
    return served, left, arrived * np.where(left > 0, 1.0, ending)


def _look(
    machine: DayMachine,
    wishes: Wishes,
    arrivals: Float64s,
    backlogs: Float64s,
    then: Float64s,
    *,
    interval_s: float,
) -> Look:
    """`arrivals` [intervals]; `backlogs` as it begins, `then` as the next one does."""
    curve: GroupCurve = machine.curve
    shape = (*wishes.after.shape, len(backlogs))
    waiting = np.broadcast_to(backlogs, shape)
    kept = np.zeros(shape)
    joules = np.broadcast_to(wishes.joules[:, :, None], shape)
    for interval, arrived in enumerate(arrivals.tolist()):
        serving_s = wishes.serving_s[:, :, interval, None]
        serving = serving_s / interval_s
        served, left, late = queue_step(waiting, arrived, curve.saturated_at(serving) * serving_s)
        rates = served / serving_s
        kept = kept + (arrived - late) * curve.share("both_share", rates, serving)
        watts = curve.least_chip_watts(rates, serving)
        joules = joules + watts * wishes.drawing_s[:, :, interval, None]
        waiting = left
    end = wishes.after[:, :, None] * len(then) + _rounded_down(waiting, then)
    length_s = len(arrivals) * interval_s
    watts = machine.facility_watts(joules / length_s + machine.left_over_watts)
    return Look(
        kept=kept,
        mwh=watts * length_s / JOULES_PER_MWH,
        then=end,
        wishes=wishes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedPlan:
    """The best plan at a price, as the relaxed day sees it.

    Attributes:
        choices: the wish in each state with each backlog at each look, [looks, states, backlogs].
        value: served and trained, in the machine's unit.
        kept: requests within the target.
    """

    choices: Int64s
    backlogs: Float64s  # [looks + 1, backlogs]
    value: float
    kept: float
    mwh: float

    def choose(self, look: int, state: int, backlog: float) -> int:
        """The plan's serving groups; a `Choice`."""
        number = _rounded_down(np.array(backlog), self.backlogs[look])
        return int(self.choices[look, state, number]) + 1


class PlannedDay:
    """A day as the recursion sees it; tables of at most some hundred MB."""

    def __init__(
        self, demand: DayDemand, machine: DayMachine, outcomes: LookOutcomes, states: int
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
        self._backlogs = least[:, None] + _grid(count, interval_most, arrivals)
        known: dict[int, Wishes] = {}
        self._looks = []
        for number, first in enumerate(firsts):
            part = arrivals[first : first + length]
            if len(part) not in known:
                known[len(part)] = Wishes.of(outcomes, states, len(part))
            look = _look(
                machine,
                known[len(part)],
                part,
                self._backlogs[number],
                self._backlogs[number + 1],
                interval_s=demand.interval_s,
            )
            self._looks.append(look)

    def best(self, *, ratio: float, price: float) -> PricedPlan:
        """Maximises value - ratio * MWh + price * kept requests."""
        machine, backlogs = self._machine, self._backlogs
        states = len(self._looks[0].wishes.after)
        # Requests count when they arrive; those that still wait in the end are taken off.
        left = machine.request_value * backlogs[-1]  # [backlogs]
        worth = np.broadcast_to(-left, (states, len(left)))
        choices = np.empty((len(self._looks), *worth.shape), dtype=np.int64)
        for number in range(len(self._looks) - 1, -1, -1):
            look = self._looks[number]
            trained = machine.token_value * look.wishes.tokens[:, :, None]
            ways = ratio * look.mwh
            np.subtract(trained, ways, out=ways)
            ways += price * look.kept
            ways += worth.take(look.then)
            choices[number] = ways.argmax(axis=1)
            worth = ways.max(axis=1)
        return self._followed(choices)

    def _followed(self, choices: Int64s) -> PricedPlan:
        state, backlog, count = 0, 0, self._backlogs.shape[1]
        tokens = kept = mwh = 0.0
        for look, wanted in zip(self._looks, choices, strict=True):
            wish = int(wanted[state, backlog])
            tokens += float(look.wishes.tokens[state, wish])
            kept += float(look.kept[state, wish, backlog])
            mwh += float(look.mwh[state, wish, backlog])
            state, backlog = divmod(int(look.then[state, wish, backlog]), count)
        served = self._requests - float(self._backlogs[-1, backlog])
        machine = self._machine
        return PricedPlan(
            choices=choices,
            backlogs=self._backlogs,
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


def _grid(count: int, least: float, arrivals: Float64s) -> Float64s:
    """Backlogs from 0 on, the others in equal ratios from `least` up to all requests."""
    if count < 2:
        return np.zeros(1)
    most = max(float(arrivals.sum()), 2.0 * least)
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
    """The bound for plans that keep `kept_min` requests; `known`: the value of one of them."""

    def at(price: float, ratio: float) -> tuple[float, PricedPlan]:
        """Dinkelbach's method, from a ratio that some plan has."""
        while True:
            plan = day.best(ratio=ratio, price=price)
            # Without a price it may be that no request has to be kept, a bound of -inf.
            spare = price * (plan.kept - kept_min) if price else 0.0
            better = (plan.value + spare) / plan.mwh
            if better <= ratio + _EXACT * abs(ratio):  # below 0 where a price takes all
                return max(better, ratio) + 10 * _EXACT * abs(ratio), plan
            ratio = better

    bound, generous = at(0.0, known)
    if generous.kept >= kept_min:
        return OracleBound(value_per_mwh=bound, generous=generous, careful=generous)
    # Each plan is a line over the price: (value + price * (kept - kept_min)) / MWh. The maximum
    # of all is convex, and its lowest point lies where a rising line meets a falling one.
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
        found, plan = at(price, meeting)
        bound = min(bound, found)
        if found <= meeting * (1 + 20 * _EXACT):
            break
        if plan.kept >= kept_min:
            careful = plan
        else:
            generous = plan
    return OracleBound(value_per_mwh=bound, generous=generous, careful=careful)
