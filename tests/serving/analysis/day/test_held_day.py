"""The walk beside the exact simulation of the same groups at the same looks."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.training_recipe import TrainingRecipe
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.exact_day import ExactTerms, RequestCounts, exact_day
from serving.analysis.day.held_day import (
    ExactQuestion,
    held_day,
    held_stretch,
    percentile_of_all,
    walked_ttft_p99_s,
)
from serving.analysis.day.replica_run import TAIL
from serving.policy.day_night.policy import Fixed
from serving.simulator.job_cost import JobTerms
from serving.simulator.request_stream import EndedRequests
from tests.serving.analysis.day.days import HANDOVER, demand, machine, walked
from tests.serving.analysis.day.test_exact_hour import LENGTHS, SLO, SWEEP, replica

LOOK_S, INTERVAL_S = 20.0, 10.0


def test_times_are_counted_by_look_and_limit() -> None:
    counts = RequestCounts(2, LOOK_S, SLO)  # 300 ms, 40 ms
    counts.add(
        EndedRequests(
            arrival_s=np.array([0.0, 19.9, 20.0, 39.0]),
            ttft_s=np.array([0.1, 0.4, 0.2, np.inf]),
            tpot_s=np.array([0.01, 0.01, 0.05, np.inf]),
            output_tokens=np.array([3, 4, 5, 6]),
        )
    )
    assert counts.arrived.tolist() == [2, 2]
    assert counts.kept.tolist() == [[1, 1], [2, 0], [1, 0]]
    assert counts.output_tokens.tolist() == [7, 11]
    whole = slice(0, 2)
    assert counts.percentile_s(0, whole, 25.0) == pytest.approx(0.1, rel=0.003)
    assert counts.percentile_s(0, whole, 75.0) == pytest.approx(0.4, rel=0.003)
    assert counts.percentile_s(1, slice(1, 2), 50.0) == pytest.approx(0.05, rel=0.003)


def test_a_percentile_of_all_requests_lies_with_those_that_are_slow() -> None:
    """Of two intervals alike it is theirs; a tenth that is ten times as slow has nearly all."""
    tail = np.array(TAIL) / 100.0  # seconds: uniform from 0 to 1
    alike = np.stack([tail, tail], axis=1)
    assert percentile_of_all(alike, np.array([5.0, 1.0]), 99.0) == pytest.approx(0.99, rel=1e-4)
    slow = np.stack([tail, 10.0 * tail], axis=1)
    nine_in_ten = np.array([9.0, 1.0])  # 1 % of all are a tenth of the slow ones
    assert percentile_of_all(slow, nine_in_ten, 99.0) == pytest.approx(9.0, rel=1e-4)
    assert percentile_of_all(slow, np.array([1.0, 0.0]), 99.0) == pytest.approx(0.99, rel=1e-4)
    assert percentile_of_all(slow, np.zeros(2), 99.0) == 0.0


def test_who_finds_a_queue_waits_for_it_first() -> None:
    """300 of 660 wait up to 15 s and 60 from 15 s on, so that 24 wait for each length of a second;
    6.6 wait longer than p99.

    Beside that each waits up to 0.21 s, as at the highest rate within the target.
    """
    wanted = demand(120, 300, 120, 120)
    terms = WalkTerms(interval_s=60.0, look_s=120.0)
    walk = walked(wanted, Fixed(serving_groups=1), terms, groups=1)
    result = DayResult(machine=machine(1), walk=walk, policy="fixed:1", describes="")
    own_s = 0.1 * result.machine.curve.least_capacity_per_s * 100 / 99
    p99_s = 15.0 + own_s / 2 - 6.6 / 24
    assert walked_ttft_p99_s(result, slice(0, 4)) == pytest.approx(p99_s, rel=0.01)
    assert walked_ttft_p99_s(result, slice(0, 1)) == pytest.approx(0.2, rel=1e-3)
    assert walked_ttft_p99_s(result, slice(3, 4)) == pytest.approx(0.2, rel=1e-3)


def a_day(*, groups: int = 8) -> DayResult:
    """Five groups train: a request a second for each that serves."""
    wanted = demand(*[30] * 12, interval_s=INTERVAL_S)
    terms = WalkTerms(interval_s=INTERVAL_S, look_s=LOOK_S)
    held = replace(machine(groups), mean_output_tokens=float(LENGTHS.output_tokens.mean()))
    policy = Fixed(serving_groups=3)
    walk = walked(wanted, policy, terms, groups=groups)
    return DayResult(machine=held, walk=walk, policy=str(policy), describes="")


TERMS = ExactTerms(
    groups=8,
    look_s=LOOK_S,
    grace_s=1.0,
    job=JobTerms(
        system=SWEEP.system,
        model=SWEEP.model,
        recipe=TrainingRecipe(),
        calibration=SWEEP.assumptions.calibration,
        rates=RecoveryRates(),
        start_s=1.0,
    ),
    handover=HANDOVER,
    capacity_per_s=2.0,
    seed=0,
)
NO_LOSSES = ExactQuestion(loss_every_s=None, repair_s=600.0)


@pytest.mark.long
def test_each_look_has_its_requests_with_lengths_that_were_seen() -> None:
    wanted = demand(3, 1, 2, 0, interval_s=INTERVAL_S)
    found = exact_day(replica(), wanted, TERMS, Fixed(serving_groups=TERMS.groups))
    counts = found.requests
    assert counts.arrived.tolist() == [4, 2]
    shortest, longest = LENGTHS.output_tokens.min(), LENGTHS.output_tokens.max()
    assert (counts.output_tokens >= shortest * counts.arrived).all()
    assert (counts.output_tokens <= longest * counts.arrived).all()


@pytest.mark.slow
def test_a_day_has_the_same_requests_and_the_hand_overs_of_its_policy() -> None:
    result = a_day()
    found = held_day(result, replica(), TERMS, NO_LOSSES, progress=lambda _: None)
    assert found.requests == result.walk.demand.arrivals.sum()
    assert found.handovers.exact == 5.0  # they leave, and stay away
    for share in (found.ttft, found.tpot, found.both, found.worst):
        assert 0.0 <= share.exact <= 1.0
    assert found.both.exact <= min(found.ttft.exact, found.tpot.exact)
    assert found.joules.exact > 0.0
    stretch = held_stretch(result, replica(), TERMS, begin_s=2 * LOOK_S, length_s=2 * LOOK_S)
    part = result.walk.demand.arrivals[4:8]
    assert stretch.requests == part.sum()
    assert stretch.handovers.exact == 0.0  # it left before
    with pytest.raises(ConfigError, match="check-hour"):
        held_stretch(result, replica(), TERMS, begin_s=5 * LOOK_S, length_s=2 * LOOK_S)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf")])
def test_times_of_losses_are_above_0(wrong: float) -> None:
    with pytest.raises(ConfigError, match="chip-loss-every"):
        ExactQuestion(loss_every_s=wrong, repair_s=600.0)
    with pytest.raises(ConfigError, match="repair"):
        ExactQuestion(loss_every_s=None, repair_s=wrong)
