"""The walk beside the exact run on random stretches with hand-overs and bursts."""

from datetime import UTC, datetime

import numpy as np
import pytest

from serving.analysis.day.day_demand import DayDemand
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_walk import walk
from serving.analysis.day.exact_day import ExactTerms, Planned
from serving.analysis.day.held_day import LEAD_LOOKS, HeldDay, held_stretch
from serving.analysis.day.look_outcomes import LookOutcomes
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine, walkable_machine
from serving.commands import day as command
from serving.policy.day_night.history import DemandHistory
from tests.serving.commands.small_day import SMALL_DAY, lengths, parsed

BEGINS = datetime(2024, 5, 10, tzinfo=UTC)
JUDGED_LOOKS = 9
LOADS = (0.3, 0.95)
"""Of what the groups serve that are there for a whole look."""
BURST = 1.3
"""Times the rate."""

Engine = tuple[DaySettings, WalkableMachine]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Two groups of four chips."""
    own = lengths(tmp_path_factory.mktemp("lengths"))
    parts = ("--chips", "8", "--group-chips", "4", "--train-recipe", "searched")
    settings = command.settings_of(parsed(*SMALL_DAY, *parts, "--lengths", str(own)))
    return settings, walkable_machine(settings)


def held(engine: Engine, seed: int, *, burst_chance: float = 0.0) -> HeldDay:
    """Three quarters of an hour; groups and rates are drawn at each look, bursts by the minute."""
    settings, walkable = engine
    machine, terms = walkable.machine, settings.question.terms
    group_per_s = machine.curve.least_capacity_per_s
    chance = np.random.default_rng(seed)
    serving = np.full(LEAD_LOOKS + JUDGED_LOOKS + 2, machine.groups)
    serving[LEAD_LOOKS:] = chance.integers(1, machine.groups + 1, JUDGED_LOOKS + 2)
    there = np.minimum(serving, np.append(serving[:1], serving[:-1]))
    rates = there * group_per_s * chance.uniform(*LOADS, len(serving))
    by_interval = np.repeat(rates, terms.look_intervals)
    bursts = np.where(chance.random(len(by_interval)) < burst_chance, BURST, 1.0)
    demand = DayDemand(
        begins=BEGINS,
        interval_s=terms.interval_s,
        arrivals=chance.poisson(by_interval * terms.interval_s * bursts),
        past=DemandHistory(
            end_s=BEGINS.timestamp(), bucket_s=terms.look_s, requests_per_s=np.zeros(0)
        ),
    )
    outcomes = LookOutcomes(
        trained=machine.trained,
        handover=walkable.handover,
        group_idle_watts=machine.curve.idle_watts,
        interval_s=terms.interval_s,
        look_s=terms.look_s,
    )
    plan = Planned(
        begins_s=BEGINS.timestamp(), look_s=terms.look_s, serving=tuple(serving.tolist())
    )
    walked = walk(demand, machine.curve, outcomes, plan)
    exact = ExactTerms(
        groups=machine.groups,
        look_s=terms.look_s,
        grace_s=settings.grace_s,
        job=settings.job,
        handover=walkable.handover,
        capacity_per_s=group_per_s,
        seed=seed,
    )
    return held_stretch(
        DayResult(machine=machine, walk=walked, policy=plan.name, describes=""),
        walkable.replica,
        exact,
        begin_s=LEAD_LOOKS * terms.look_s,
        length_s=JUDGED_LOOKS * terms.look_s,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_hand_overs_are_walked_as_they_are_simulated(engine: Engine, seed: int) -> None:
    found = held(engine, seed)
    assert found.handovers.exact == found.handovers.walked > 0
    assert abs(found.both.difference) < 0.005
    assert abs(found.ttft_p99_s.relative) < 0.10
    assert abs(found.tpot_p99_s.relative) < 0.02
    assert abs(found.joules.relative) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 6, 12])
def test_who_finds_a_queue_after_a_burst_waits_about_as_long(engine: Engine, seed: int) -> None:
    """Seeds in which bursts are more than what serves; all who wait are late in the walk, those too
    who would wait less than the limit.
    """
    found = held(engine, seed, burst_chance=0.1)
    assert found.both.exact < 0.95
    assert -0.015 < found.both.difference < 0.0
    assert abs(found.ttft_p99_s.relative) < 0.10
    assert abs(found.joules.relative) < 0.01
