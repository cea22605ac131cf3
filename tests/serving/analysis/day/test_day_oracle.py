"""The oracle: no plan under the same rules is better than it says."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.day.day_comparison import share_to_keep
from serving.analysis.day.day_demand import DayDemand, WalkTerms
from serving.analysis.day.day_oracle import DayOracle, day_oracle
from serving.analysis.day.day_result import DayMachine, DayResult, ValueUnit
from serving.analysis.day.day_walk import walk_choices
from serving.analysis.day.fluid_queue import late_share, queue_step
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.oracle_bound import PlannedDay
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.training_yield import GroupHandover, TrainingYield
from tests.serving.analysis.day.days import (
    CURVE,
    HANDOVER,
    demand,
    machine,
    outcomes,
    point,
    trained,
)

TERMS = WalkTerms(interval_s=60.0, look_s=120.0)
EXACT = 1 + 1e-7


class Day:
    """A machine, its hand-overs and a demand, on which plans are walked."""

    def __init__(
        self, on: DayMachine, wanted: DayDemand, handover: GroupHandover = HANDOVER
    ) -> None:
        self.machine = on
        self.demand = wanted
        self.outcomes: LookOutcomes = outcomes(on.trained, TERMS, handover)
        self.looks = -(-len(wanted.arrivals) // TERMS.look_intervals)
        self.never = self.walked([on.groups] * self.looks)
        self.kept_share = share_to_keep(self.never)

    def walked(self, plan: list[int] | tuple[int, ...]) -> DayResult:
        def choose(look: int, _state: int, _backlog: float) -> int:
            return plan[look]

        going = walk_choices(self.demand, self.machine.curve, self.outcomes, choose)
        return DayResult(machine=self.machine, walk=going, policy=f"{plan}", describes="")

    def oracle(self) -> DayOracle:
        share = self.kept_share
        return day_oracle(
            self.demand, self.machine, self.outcomes, kept_share=share, known=[self.never]
        )

    def feasible(self, result: DayResult) -> bool:
        return result.slo_attainment >= self.kept_share


def busy_machine(groups: int) -> DayMachine:
    """A group trains about what it would serve, from the first one on."""
    small = machine(groups)
    return replace(small, trained=replace(trained(groups, least=1), flops_per_token=300.0))


# A group serves 126 requests a minute within the target.
STEADY = (100,) * 10
NIGHT = (300, 290, 50, 40, 30, 40, 40, 50, 290, 310)
WOBBLE = (230, 230, 270, 270, 230, 230, 270, 270, 230, 230)


@pytest.mark.parametrize("arrivals", [STEADY, NIGHT, WOBBLE])
def test_of_all_plans_of_a_short_day_none_is_better_than_the_bound(
    arrivals: tuple[int, ...],
) -> None:
    day = Day(busy_machine(3), demand(*arrivals))
    oracle = day.oracle()
    plans = [day.walked(plan) for plan in product(range(1, 4), repeat=day.looks)]
    best = max(each.value for each in plans if day.feasible(each))

    assert oracle.bound is not None
    assert day.feasible(oracle.result)
    assert oracle.result.value <= best * EXACT
    assert best <= oracle.bound * EXACT
    # Each of five looks is much of the day; of hundreds the bound is within a thousandth.
    assert oracle.bound < 1.2 * best


def test_where_the_target_does_not_bind_the_bound_is_a_plans_value() -> None:
    lenient = replace(CURVE, required_share=0.1)
    day = Day(replace(busy_machine(3), curve=lenient), demand(*(n // 2 for n in NIGHT)))
    oracle = day.oracle()
    plans = [day.walked(plan) for plan in product(range(1, 4), repeat=day.looks)]
    best = max(each.value for each in plans if day.feasible(each))

    assert oracle.result.value == pytest.approx(best, rel=1e-6)
    assert oracle.bound == pytest.approx(best, rel=1e-6)


def test_on_a_demand_that_wobbles_the_oracle_does_not_run_after_it() -> None:
    """Here a plan by demand alone was beaten by a fixed split: each change costs a restart."""
    slow = replace(HANDOVER, drain_s=50.0, restore_s=55.0)
    day = Day(busy_machine(4), demand(*(230, 230, 270, 270) * 8), slow)
    chasing = day.walked([2, 3] * 8)
    split = day.walked([3] * day.looks)
    oracle = day.oracle()

    assert day.feasible(split)
    assert chasing.value < split.value <= oracle.result.value
    assert oracle.result.handovers < chasing.handovers


def random_curve(chance: np.random.Generator) -> ReplicaCurve:
    shares = np.sort(chance.uniform(0.7, 1.0, 3))[::-1]
    watts = chance.uniform(50.0, 400.0, 3)  # also such that fall with the rate
    points = tuple(
        point(float(rate), float(share), chip_watts=float(each))
        for rate, share, each in zip((1.0, 2.0, 3.0), shares, watts, strict=True)
    )
    limit_s = float(chance.choice([0.0, 1.0, 40.0]))
    return replace(
        CURVE,
        points=points,
        required_share=float(chance.uniform(0.8, 0.99)),
        idle_watts=100.0,
        ttft_limit_s=limit_s or None,
    )


def random_yield(chance: np.random.Generator, groups: int) -> TrainingYield:
    count = groups + 1
    least = int(chance.integers(1, count))
    works = np.arange(count) >= least

    def column(most: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.where(works, chance.uniform(0.0, most, count), 0.0)

    return TrainingYield(
        model="trained",
        least_chips=least,
        recipe="any",
        peak_flops_per_s=1e15,
        flops_per_token=float(10 ** chance.uniform(1, 5)),
        tokens_per_s=np.maximum.accumulate(column(60.0)),
        chips_at_work=np.where(works, np.arange(count), 0.0),
        watts=column(1_500.0),
        save_s=column(90.0),
        start_s=column(60.0),
        save_joules=column(5e4),
        start_joules=column(5e4),
    )


def random_day(seed: int) -> tuple[Day, Callable[[], list[int]]]:
    """A day of bursts, steps and overloads on a machine with any costs; and any plan on it."""
    chance = np.random.default_rng(seed)
    groups = int(chance.integers(2, 5))
    load = groups * 120 * chance.uniform(0.2, 1.6)
    spread = chance.choice([0.05, 0.5, 2.0])
    arrivals = chance.poisson(load * chance.gamma(1 / spread, spread, int(chance.integers(2, 40))))
    on = replace(
        machine(groups),
        curve=random_curve(chance),
        trained=random_yield(chance, groups),
        unit=list(ValueUnit)[int(chance.integers(3))],
    )
    handover = GroupHandover(
        drain_s=float(chance.uniform(0.0, 150.0)),
        restore_s=float(chance.uniform(0.0, 150.0)),
        restore_joules=float(chance.uniform(0.0, 4e4)),
        moved_requests_per_rate_s=float(chance.uniform(0.0, 20.0)),
    )

    def plan() -> list[int]:
        level, wanted = groups, []
        stay = chance.uniform(0.0, 1.0)
        for _ in range(-(-len(arrivals) // 2)):
            level = level if chance.random() < stay else int(chance.integers(1, groups + 1))
            wanted.append(level)
        return wanted

    return Day(on, demand(*arrivals.tolist()), handover), plan


@pytest.mark.slow
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_no_plan_and_no_fixed_split_is_better_than_the_oracle_beyond_its_gap(seed: int) -> None:
    day, plan = random_day(seed)
    oracle = day.oracle()
    if oracle.bound is None:  # hand-overs over several looks
        return
    assert day.feasible(oracle.result)
    assert oracle.result.value <= oracle.bound * EXACT
    plans = [plan() for _ in range(15)]
    plans += [[serving] * day.looks for serving in range(1, day.machine.groups + 1)]
    for each in map(day.walked, plans):
        if day.feasible(each):
            assert each.value <= oracle.bound * EXACT


@pytest.mark.long
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), price=st.floats(0, 1e6), ratio=st.floats(0, 1e12))
def test_the_best_plan_at_a_price_is_worth_at_least_what_any_walk_is(
    seed: int, price: float, ratio: float
) -> None:
    day, plan = random_day(seed)
    states = day.outcomes.reachable(400)
    if states is None:
        return
    planned = PlannedDay(day.demand, day.machine, day.outcomes, states)
    best = planned.best(ratio=ratio, price=price)
    scale = best.value + ratio * best.mwh + price * abs(best.kept)
    for each in (day.walked(plan()) for _ in range(5)):
        kept = float(each.kept("both_share").sum())
        worth = each.value * each.energy_mwh - ratio * each.energy_mwh + price * kept
        at_best = best.value - ratio * best.mwh + price * best.kept
        assert worth <= at_best + 1e-9 * scale


@given(
    arrivals=st.lists(st.integers(0, 1_500), min_size=1, max_size=12),
    serving=st.integers(1, 4),
    limit_s=st.sampled_from([None, 1.0, 40.0]),
)
def test_intervals_are_counted_as_the_walk_counts_them(
    arrivals: list[int], serving: int, limit_s: float | None
) -> None:
    curve = replace(CURVE, ttft_limit_s=limit_s)
    day = Day(replace(machine(4), curve=curve), demand(*arrivals))
    walked = day.walked([serving] * day.looks).walk
    waiting = np.zeros(1)
    for number, times in enumerate(walked.times):
        served = late = 0.0
        for share, groups in times.shares:
            per_s = np.array([CURVE.saturated_per_s * groups])
            first_s, most = waiting / per_s, per_s * share * day.demand.interval_s
            part, waiting, found = queue_step(waiting, share * arrivals[number], most)
            served += part
            late += found * late_share(first_s, waiting / per_s, curve.patience_s)
        assert served == pytest.approx(walked.served[number])
        assert waiting == pytest.approx(walked.backlog[number])
        assert late == pytest.approx(walked.late[number])


def test_machines_sum_exactly_and_a_walk_is_that_of_one() -> None:
    day = Day(busy_machine(4), demand(*NIGHT))
    one = day.walked([4, 2, 1, 2, 4])
    ten = replace(one, machine=replace(day.machine, machines=10))

    for name in ("requests", "served_requests", "training_tokens", "energy_mwh", "handovers"):
        assert getattr(ten, name) == pytest.approx(10 * getattr(one, name), rel=1e-12)
    for name in ("value", "flops_per_mwh", "slo_attainment", "worst_5min_attainment"):
        assert getattr(ten, name) == pytest.approx(getattr(one, name), rel=1e-12)
    for name in ("freed_share", "freed_share_of_peak", "output_tokens_per_mwh"):
        assert getattr(ten, name) == pytest.approx(getattr(one, name), rel=1e-12)
