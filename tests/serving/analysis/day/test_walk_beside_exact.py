"""The walk beside the exact run on random stretches with hand-overs and bursts."""

import numpy as np
import pytest

from serving.analysis.day.held_day import LEAD_LOOKS, HeldDay
from serving.analysis.day.virtual_day import DaySettings, WalkableMachine, walkable_machine
from serving.commands import day as command
from tests.serving.analysis.day.planned_stretch import held_plan
from tests.serving.commands.small_day import SMALL_DAY, lengths, parsed

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
    return held_plan(
        settings,
        walkable,
        serving=serving.tolist(),
        arrivals=chance.poisson(by_interval * terms.interval_s * bursts),
        first=LEAD_LOOKS,
        looks=JUDGED_LOOKS,
        seed=seed,
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
@pytest.mark.parametrize(("seed", "within"), [(4, 0.0015), (6, 0.007), (12, 0.0015), (15, 0.0015)])
def test_who_finds_a_queue_after_a_burst_waits_about_as_long(
    engine: Engine, seed: int, within: float
) -> None:
    """Seeds in which bursts are more than what serves; if all who wait were late, the walk would be
    0.2 to 0.4 points too low. Seed 6 is among the three of 16 that are beyond half a point.
    """
    found = held(engine, seed, burst_chance=0.1)
    assert found.both.exact < 0.95
    assert abs(found.both.difference) < within
    assert abs(found.ttft_p99_s.relative) < 0.10
    assert abs(found.joules.relative) < 0.01
