"""The oracle: the best plan found for a known day, and how much better any other can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_result import DayMachine, DayResult
from serving.analysis.day.day_walk import Choice, walk_choices
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.oracle_bound import (
    STATES_MAX,
    OracleBound,
    PlannedDay,
    oracle_bound,
)

ORACLE: Final = "oracle"
_DESCRIBES: Final = (
    "oracle: the best plan found for the known day, walked like a policy, with every cost of its "
    "changes; for comparison: it knows the whole day ahead"
)
_CUTS: Final = 10
_ROUNDING: Final = 1e-9
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DayOracle:
    """`bound`: no plan that keeps as many requests in time has a higher value per MWh; None where
    hand-overs last over so many looks that it is not computed.
    """

    result: DayResult
    bound: float | None


def day_oracle(
    demand: DayDemand,
    machine: DayMachine,
    outcomes: LookOutcomes,
    *,
    kept_share: float,
    known: Sequence[DayResult],
) -> DayOracle:
    """The best of `known` and of the plans by the bound that keep `kept_share` of the requests in
    time; of `known` at least one does.
    """

    def walked(choose: Choice) -> DayResult:
        going = walk_choices(demand, machine.curve, outcomes, choose)
        return DayResult(machine=machine, walk=going, policy=ORACLE, describes=_DESCRIBES)

    def feasible(result: DayResult) -> bool:
        return result.slo_attainment >= kept_share

    best = max(filter(feasible, known), key=lambda each: each.value)
    states = outcomes.reachable(STATES_MAX)
    bound = None
    if states is not None:
        # What a plan keeps to the last request may be a rounding less in the bound's own sum.
        requests = (1 - _ROUNDING) * float(demand.arrivals.sum())
        kept_min = kept_share * requests if kept_share > 0 else -float("inf")
        day = PlannedDay(demand, machine, outcomes, states, kept_min=kept_min)
        found = oracle_bound(day, kept_min=kept_min, known=best.value)
        bound = found.value_per_mwh
        plans = _plans(found, walked, feasible)
        # Backlogs are rounded down, so that on the true day even the careful plan may keep too few.
        for _ in range(_ATTEMPTS):
            missed = kept_share - max(each.slo_attainment for each in plans)
            if missed <= 0 or found.careful is None:
                break
            careful = found.careful.kept + missed * requests
            found = oracle_bound(day, kept_min=careful, known=0.0)
            plans = _plans(found, walked, feasible)
        best = max((best, *filter(feasible, plans)), key=lambda each: each.value)
    named = replace(best, policy=ORACLE, describes=_DESCRIBES)
    return DayOracle(result=named, bound=bound)


def _plans(
    found: OracleBound,
    walked: Callable[[Choice], DayResult],
    feasible: Callable[[DayResult], bool],
) -> list[DayResult]:
    """The bound's plans on the true day, and what lies between them.

    Both are the best at one price, and so is about every plan that follows one until a look and the
    other from then on: the look decides how many requests are in time.
    """
    plans = [walked(found.generous.choose)]
    if found.careful is None:
        return plans
    plans.append(walked(found.careful.choose))
    looks = len(plans[0].walk.wanted)
    for first, second in (plans, plans[::-1]):
        low, high = 0, looks
        for _ in range(_CUTS):
            look = (low + high) // 2
            wanted = (*first.walk.wanted[:look], *second.walk.wanted[look:])
            plan = walked(_of(wanted))
            plans.append(plan)
            # More of the generous plan while enough are in time.
            if feasible(plan) == (first is plans[0]):
                low = look
            else:
                high = look
    return plans


def _of(wanted: Sequence[int]) -> Choice:
    return lambda look, _state, _backlog: wanted[look]
