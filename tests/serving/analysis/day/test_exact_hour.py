"""The walk beside the exact run of vLLM's schedulers, on a replica that is quick to simulate."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.specs.shipped_fits import calibration_for
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import ObservedLengths
from serving.analysis.day.curve_search import CurveTerms, find_curve
from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_result import DayMachine, DayResult
from serving.analysis.day.exact_hour import HourCheck, exact_hour
from serving.analysis.day.replica_choice import choose_replica
from serving.analysis.day.replica_curve import ReplicaCurve
from serving.analysis.day.replica_run import RateTask, ReplicaUnderTest, run_at_rate
from serving.analysis.steady_state.partitions import PartitionFilter
from serving.analysis.steady_state.request_shape import RequestShape
from serving.analysis.steady_state.step_assumptions import StepAssumptions
from serving.analysis.steady_state.sweep import Sweep
from serving.policy.day_night.policy import Never
from serving.simulator.simulation_workers import THIS_PROCESS, SimulationWorkers
from serving.traffic.engine_limits import EngineLimits
from tests.serving.analysis.day.days import demand, machine, trained, walked
from tests.serving.analysis.plan.planned import MODEL, SYSTEM

SLO = Slo.parse("ttft=300ms,tpot=40ms@p90")
RNG = np.random.default_rng(5)
LENGTHS = ObservedLengths(
    prompt_tokens=RNG.integers(300, 500, size=200), output_tokens=RNG.integers(6, 14, size=200)
)
SWEEP = Sweep(
    system=SYSTEM,
    model=MODEL,
    shape=RequestShape(prompt_tokens=400, output_tokens=10),
    asked=PartitionFilter(chips=(1,), lnc=(2,)),
    precisions=("stored",),
    assumptions=StepAssumptions(calibration=calibration_for("trainium3", name="fitted")),
)


def replica() -> ReplicaUnderTest:
    choice = choose_replica(SWEEP, SLO, longest_tokens=600, seats=64)
    return ReplicaUnderTest(
        sweep=SWEEP,
        precision=choice.precision,
        candidate=choice.candidate,
        limits=EngineLimits(
            max_num_batched_tokens=2_048, max_num_seqs=64, kv_blocks_per_rank=4_000, block_tokens=32
        ),
        lengths=LENGTHS,
        slo=SLO,
    )


@pytest.fixture(scope="module")
def curve() -> ReplicaCurve:
    choice = choose_replica(SWEEP, SLO, longest_tokens=600, seats=64)
    terms = CurveTerms(required_share=0.9, judged=40, judged_least=30, turns=4)
    with SimulationWorkers(1) as workers:
        return find_curve(replica(), choice.guess, terms, workers)


@pytest.mark.slow
def test_the_search_brackets_the_capacity_between_runs_that_keep_and_miss_the_target(
    curve: ReplicaCurve,
) -> None:
    kept = [each.rate_per_s for each in curve.points if each.both_share >= 0.9]
    assert len(curve.points) >= 5
    assert max(kept) <= curve.saturated_per_s
    assert min(kept) < curve.capacity_per_s <= curve.points[-1].rate_per_s
    assert curve.capacity_per_s < curve.saturated_per_s
    idle = SYSTEM.chip.idle_watts.value
    assert curve.idle_watts == idle
    assert all(point.chip_watts > idle for point in curve.points)


@pytest.mark.long
def test_a_run_at_a_rate_depends_on_its_seed_alone() -> None:
    task = RateTask(replica=replica(), rate_per_s=20.0, judged=30, lead_s=0.2, seed=3)
    assert run_at_rate(task) == run_at_rate(task)
    assert run_at_rate(replace(task, seed=4)) != run_at_rate(task)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 0.95])
def test_the_walk_is_near_the_exact_run_of_a_stretch(curve: ReplicaCurve, share: float) -> None:
    groups = 4
    small = machine(groups)
    held = DayMachine(
        system=small.system,
        machines=1,
        group_chips=1,
        curve=curve,
        trained=trained(groups),
        mean_prompt_tokens=float(LENGTHS.prompt_tokens.mean()),
        mean_output_tokens=float(LENGTHS.output_tokens.mean()),
        flops_per_request=1.0,
    )
    interval_s = 30.0  # long enough for queues to be as the curve's runs know them
    busy = round(share * groups * curve.capacity_per_s * interval_s)
    wanted = demand(busy, busy // 2, busy, interval_s=interval_s)
    terms = WalkTerms(interval_s=interval_s, look_s=interval_s)
    result = DayResult(
        machine=held,
        walk=walked(wanted, Never(), terms, curve=curve),
        policy="never",
        describes="",
    )
    check = HourCheck(
        begin_s=interval_s, length_s=2 * interval_s, warmup_s=interval_s, part_s=interval_s
    )
    with SimulationWorkers(1) as workers:
        found = exact_hour(result, replica(), check, workers)
        whole = exact_hour(result, replica(), replace(check, part_s=2 * interval_s), workers)
        with pytest.raises(ConfigError, match="check-hour"):
            exact_hour(result, replica(), replace(check, begin_s=4 * interval_s), workers)

    chance = 4 * found.output_tokens_sigma  # four standard deviations of the count of requests
    assert abs(found.output_tokens.relative) < chance
    assert abs(found.joules.relative) < 0.05
    assert abs(found.both.difference) < 0.03
    assert abs(found.ttft_p99_s.relative) < 0.15
    assert abs(found.tpot_mean_s.relative) < 0.1
    # Cut in two or not, every request is judged once.
    assert (found.parts, whole.parts) == (2, 1)
    assert found.requests == whole.requests
    assert found.output_tokens.exact == whole.output_tokens.exact
    assert found.joules.exact == pytest.approx(whole.joules.exact, rel=0.02)


def test_every_request_of_a_stretch_is_judged_once_however_it_is_cut() -> None:
    interval_s = 10.0
    wanted = demand(*[80] * 6, interval_s=interval_s)  # 2 requests/s for each of 4 groups
    held = machine(4)
    terms = WalkTerms(interval_s=interval_s, look_s=interval_s)
    result = DayResult(
        machine=held,
        walk=walked(wanted, Never(), terms),
        policy="never",
        describes="",
    )
    check = HourCheck(begin_s=20.0, length_s=30.0, warmup_s=interval_s, part_s=interval_s)
    tested = replica()
    cut, whole = (
        exact_hour(result, tested, replace(check, part_s=part_s), THIS_PROCESS)
        for part_s in (interval_s, 30.0)
    )

    assert (cut.parts, whole.parts) == (3, 1)
    assert cut.expected_requests == pytest.approx(60.0)
    assert abs(cut.requests - 60.0) < 4 * 60.0**0.5
    assert cut.requests == whole.requests
    assert cut.output_tokens.exact == whole.output_tokens.exact


def test_the_replica_is_the_one_of_which_a_machine_takes_the_most() -> None:
    sweep = replace(SWEEP, asked=PartitionFilter(chips=(1, 2), tp=(1,), lnc=(2,)))
    choice = choose_replica(sweep, SLO, longest_tokens=600, seats=64)

    best = {}
    for precision, candidate in sweep.tasks():
        runs = sweep.replica(precision, candidate)
        points = runs.operating_points(sorted({min(64, each) for each in runs.batches()}))
        within = [each.requests_per_s for each in points if each.tpot_ns <= 40e6]
        best[candidate.partition.chips] = max(
            best.get(candidate.partition.chips, 0.0), max(within, default=0.0)
        )
    assert choice.guess.rate_per_s * choice.candidate.replicas == pytest.approx(max(best.values()))
    assert choice.chips == max(best, key=lambda chips: best[chips])
    tight = Slo.parse("ttft=1us,tpot=1us")
    with pytest.raises(ConfigError, match="slo"):
        choose_replica(sweep, tight, longest_tokens=600, seats=64)
