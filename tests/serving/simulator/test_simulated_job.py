"""A simulated training job: its starts, steps, saves and joules, by hand."""

import pytest

from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import HandoverCost
from emulator.units import NS_PER_S
from serving.policy.day_night.handover import JobEvent
from serving.simulator.job_cost import JobCost, JobTerms, best_job, job_of_machines
from serving.simulator.simulated_job import JobWork, SimulatedJob

COST = JobCost(
    chips=2,
    step_tokens=10,
    step_ns=NS_PER_S,
    watts=100.0,
    save=HandoverCost(duration_ns=3 * NS_PER_S, joules=6.0),
    read=HandoverCost(duration_ns=2 * NS_PER_S, joules=4.0),
    recipe=TrainingRecipe(),
)
SYSTEM = system_by_name("trn3-nl72x2")
TERMS = JobTerms(
    system=SYSTEM,
    model=model_by_name("qwen3-30b-a3b"),
    recipe=TrainingRecipe(lnc=2),
    calibration=calibration_for(SYSTEM.chip.name),
    rates=RecoveryRates(),
)


def at(job: SimulatedJob, seconds: float) -> JobEvent | None:
    return job.advance(round(seconds * NS_PER_S))


def ready_s(job: SimulatedJob) -> float | None:
    return None if job.ready_ns is None else job.ready_ns / NS_PER_S


def started() -> SimulatedJob:
    """At 5 s, on two chips of 10 W when idle; it trains from 8 s on."""
    job = SimulatedJob(lambda _: COST, start_s=1.0, idle_chip_watts=10.0)
    assert at(job, 5.0) is None
    assert job.start((3, 4))
    assert ready_s(job) == 8.0
    assert at(job, 6.5) is None
    return job


def test_it_finishes_its_step_and_saves() -> None:
    job = started()
    assert at(job, 8.0) is JobEvent.STEPPED
    assert ready_s(job) is None
    assert at(job, 10.5) is None
    assert (job.work.steps, job.work.tokens, job.watts) == (2, 20, 100.0)
    job.stop()
    assert ready_s(job) == 14.0  # the third step ends at 11 s
    assert at(job, 11.0) is None
    assert job.watts == pytest.approx(2 + 20)
    assert at(job, 14.0) is JobEvent.STOPPED
    joules = (4 + 20 * 3) + 100 * 3 + (6 + 20 * 3)
    done = JobWork(starts=1, steps=3, tokens=30, joules=joules, alive_ns=9 * NS_PER_S)
    assert job.work == done
    assert at(job, 99.0) is None
    assert job.work == done
    assert job.start((3, 4))


def test_what_is_not_saved_is_lost_when_it_is_killed() -> None:
    job = started()
    at(job, 8.0)
    at(job, 10.5)
    job.kill()
    assert (job.work.tokens, job.work.undone_tokens) == (20, 20)
    assert (ready_s(job), job.watts) == (None, 0.0)


def test_a_job_that_has_not_begun_to_train_stops_at_once() -> None:
    job = started()
    job.stop()
    assert ready_s(job) == 6.5
    assert at(job, 6.5) is JobEvent.STOPPED
    assert (job.work.steps, job.work.alive_ns) == (0, 1.5 * NS_PER_S)


def test_it_waits_for_chips_that_hold_its_state() -> None:
    job = SimulatedJob(lambda _: None, start_s=1.0, idle_chip_watts=10.0)
    assert not job.start((3,))
    assert at(job, 9.0) is None
    assert job.work == JobWork()


@pytest.mark.long
def test_a_job_on_two_machines_steps_together() -> None:
    one, few = best_job(TERMS, range(8)), range(2)
    assert one is not None
    assert best_job(TERMS, few) is None
    assert job_of_machines(TERMS, [few]) is None
    assert job_of_machines(TERMS, [few, range(8)]) == one
    two = job_of_machines(TERMS, [range(8), range(8)])
    assert two is not None
    assert (two.step_tokens, two.step_ns) == (2 * one.step_tokens, one.step_ns)
    assert two.save.duration_ns == one.save.duration_ns
    assert two.save.joules == pytest.approx(2 * one.save.joules)
