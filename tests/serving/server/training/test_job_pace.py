"""A fast-forwarded job trains by the clock what a simulated one does, and computes a part."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from emulator.errors import HbmExhausted
from emulator.sim.clock import DilatedClock
from emulator.specs.partition import Partition
from emulator.units import NS_PER_S
from loadgen.measures.slo import Slo
from loadgen.workloads.length_pairs import IndependentLengths
from loadgen.workloads.lengths import Uniform
from loadgen.workloads.traffic import Traffic
from serving.server.training.checkpoint import CheckpointState
from serving.server.training.job_pace import job_pace
from serving.server.training.job_spec import JobSpec
from serving.server.training.job_status import CurvePoint, TrainingPhase, read_curve
from serving.server.training.job_timing import job_terms, job_timing
from serving.simulator import SchedulerLimits, SimulatedDeployment, simulate
from serving.simulator.day_night import SimulatedDayNight
from serving.simulator.job_cost import JobCost, best_job
from serving.traffic.start_time import START_S
from serving.wire.control_call import TrainingNote
from tests.serving.server.training.tiny_job import Job, tiny_spec

K = 20.0
NOTHING = CheckpointState(
    step=0,
    tokens=0,
    loss=None,
    held_out_nats=None,
    first_held_out_nats=None,
    emulated_ns=0,
    joules=0.0,
    lag_ns=0,
    corpus_sha256="",
    seed=0,
)


class Wall:
    """A wall clock that the test moves; sleeping passes it."""

    def __init__(self) -> None:
        self.ns = 0

    def clock(self, dilation: float = K) -> DilatedClock:
        return DilatedClock(dilation, wall_ns=lambda: self.ns, sleep_s=self.pass_s)

    def pass_s(self, seconds: float) -> None:
        self.ns += math.ceil(seconds * NS_PER_S)

    def pass_emulated(self, ns: float) -> None:
        self.ns += math.ceil(ns * K)


def always(_state: CheckpointState) -> bool:
    return True


def large_spec(weights: Path, **changes: object) -> JobSpec:
    """A job that is timed as a large model's."""
    spec = tiny_spec(
        weights, model="qwen3-30b-a3b", chips=8, first_chip=8, batch_tokens=128, dilation=K,
        pace="fast-forward",
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def cost_of(spec: JobSpec) -> JobCost:
    cost = best_job(job_terms(spec), spec.system_chips)
    assert cost is not None
    return cost


@pytest.mark.long
def test_a_fast_forwarded_night_has_the_tokens_and_joules_of_the_simulated_one(
    tmp_path: Path,
) -> None:
    deployment = SimulatedDeployment.of(
        "trn3-nl72x2",
        "qwen3-30b-a3b",
        Partition(chips=16, ep=16, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=8),
    )
    night = SimulatedDayNight(
        policy="schedule:06:00-18:00",
        day_length_s=480.0,
        day_start="00:00",
        zone="UTC",
        chips=16,
        group_chips=8,
        lend_groups=1,
        grace_s=0.1,
        slo=Slo.parse("ttft=1s,tpot=30ms@p99"),
        group_requests_per_s=1_000.0,
        group_requests_source="as it was said",
        reading_s=0.5,
    )
    few = IndependentLengths(prompt=Uniform(least=1, most=99), output=Uniform(least=1, most=5))
    day = Traffic.drawn(rate_per_s=0.2, lengths=few, seed=3, requests=100)
    run = simulate(deployment, day, day_night=night)
    noted = [call.call for call in run.calls if isinstance(call.call, TrainingNote)]
    simulated = noted[-1].totals
    assert simulated.steps > 20

    spec, wall = large_spec(tmp_path), Wall()
    cost, pace = cost_of(spec), job_pace(spec, wall.clock())
    pace.begin(NOTHING)
    ends_ns = simulated.emulated_s * NS_PER_S  # of its save; it was asked to within a step
    wall.pass_emulated(ends_ns - cost.save.duration_ns - cost.step_ns / 2)
    live = pace.end(NOTHING)

    assert (live.trained_steps, live.trained_tokens) == (simulated.steps, simulated.tokens)
    assert live.emulated_ns == pytest.approx(ends_ns, abs=1_000)
    assert live.joules == pytest.approx(simulated.joules, rel=1e-6)
    assert live.lag_ns == 0


@pytest.mark.long
def test_it_trains_by_the_clock_and_what_was_not_saved_is_lost(tmp_path: Path) -> None:
    spec, wall = large_spec(tmp_path), Wall()
    cost, pace = cost_of(spec), job_pace(spec, wall.clock())
    starts_ns = round(START_S * NS_PER_S) + cost.read.duration_ns

    pace.begin(NOTHING)
    wall.pass_emulated(starts_ns - cost.step_ns)
    assert pace.stepped(NOTHING).trained_steps == 0  # it reads its weights still
    assert pace.watts < cost.watts
    wall.pass_emulated(2.5 * cost.step_ns)
    saved = pace.saved(NOTHING)
    assert (saved.trained_steps, saved.trained_tokens) == (1, cost.step_tokens)
    assert saved.emulated_ns == pytest.approx(wall.ns / K, abs=1)
    assert pace.watts == pytest.approx(cost.watts)
    wall.pass_emulated(4 * cost.step_ns)
    assert pace.evaluated(saved, 64).trained_steps == 5

    pace.begin(saved)  # a chip was lost
    wall.pass_emulated(starts_ns + 1.5 * cost.step_ns)
    assert pace.stepped(saved).trained_steps == 1 + 1


@pytest.mark.long
def test_a_stop_ends_the_step_and_saves_and_a_waiting_job_shows_that_it_lives(
    tmp_path: Path,
) -> None:
    spec, wall = large_spec(tmp_path), Wall()
    cost, pace = cost_of(spec), job_pace(spec, wall.clock())
    pace.begin(NOTHING)
    wall.pass_emulated(START_S * NS_PER_S + cost.read.duration_ns + 2.5 * cost.step_ns)
    asked_ns = wall.ns
    seen_ns: list[int] = []

    def looks(_state: CheckpointState) -> bool:
        seen_ns.append(wall.ns)
        return True

    ended = pace.end(NOTHING)
    pace.hold(ended, looks)

    assert ended.trained_steps == 3
    assert pace.saved(ended) == ended
    assert wall.ns / K == pytest.approx(ended.emulated_ns, abs=1_000)
    assert 0 < wall.ns - asked_ns <= pace.stop_ns * K
    assert max(b - a for a, b in pairwise([asked_ns, *seen_ns])) <= NS_PER_S + 1_000


def test_a_stop_before_the_chips_train_has_nothing_to_save(tmp_path: Path) -> None:
    spec, wall = large_spec(tmp_path), Wall()
    pace = job_pace(spec, wall.clock())
    pace.begin(NOTHING)
    wall.pass_emulated(NS_PER_S)

    ended = pace.end(NOTHING)
    pace.hold(ended, always)

    assert (ended.trained_steps, ended.emulated_ns) == (0, NS_PER_S)
    assert wall.ns == NS_PER_S * K


@pytest.mark.slow
@pytest.mark.parametrize("round_s", [0.0, 9.0])
def test_a_sample_is_really_computed_and_never_more_than_the_chips_train(
    tmp_path: Path, round_s: float
) -> None:
    whole = Job(tiny_spec(tmp_path), tmp_path / "whole")
    whole.run()
    wall = Wall()
    spec = tiny_spec(tmp_path, pace="fast-forward", dilation=K)
    job = Job(
        spec,
        tmp_path / "sampled",
        lambda _: wall.pass_s(round_s),
        make_clock=lambda _: wall.clock(),
    )
    status = job.run()

    losses = [(point.step, point.loss, point.held_out_nats) for point in curve(job)]
    assert losses == [(point.step, point.loss, point.held_out_nats) for point in curve(whole)]
    assert (status.phase, status.step, status.tokens) == (TrainingPhase.DONE, 6, 6 * 64)
    cost = cost_of(spec)
    assert status.trained_tokens == status.trained_steps * cost.step_tokens >= status.tokens
    read_s = 2 * round_s / K  # of the state, after the emulated end
    assert status.emulated_ns / NS_PER_S == pytest.approx(wall.ns / K / NS_PER_S, abs=read_s + 0.01)
    assert status.emulated_ns > START_S * NS_PER_S  # however fast the host is
    assert status.lag_ns == 0


def curve(job: Job) -> list[CurvePoint]:
    return read_curve(job.path / "curve.jsonl")


def test_a_real_pace_counts_what_is_computed_and_how_late(tmp_path: Path) -> None:
    wall = Wall()
    spec = tiny_spec(tmp_path, dilation=K)
    pace, step_ns = job_pace(spec, wall.clock()), job_timing(spec).step.duration_ns
    pace.begin(NOTHING)
    wall.pass_emulated(10 * step_ns)

    late = pace.stepped(NOTHING)
    intime = pace.stepped(late)

    assert (intime.trained_steps, intime.trained_tokens) == (2, 2 * 64)
    assert intime.emulated_ns == 2 * step_ns
    assert late.lag_ns == intime.lag_ns == pytest.approx(9 * step_ns, abs=1)
    assert wall.ns / K == pytest.approx(11 * step_ns, abs=1)


def test_a_training_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HbmExhausted, match=r"\d+ chips"):
        job_pace(large_spec(tmp_path, model="gpt-oss-120b"), Wall().clock())
