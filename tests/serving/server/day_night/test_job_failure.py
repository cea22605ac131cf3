"""A job that fails says why, what is tried next and when, and asking again does not erase it."""

import asyncio
import logging
from pathlib import Path

import pytest

from serving.policy.day_night.handover import Failures, HandoverLimits, HandoverPhase, JobPhase
from serving.policy.day_night.handover_machine import HandoverJob
from serving.server.control.engine_watch import EngineWatch
from serving.server.day_night.day_night_report import day_night_state
from serving.server.day_night.job_failure import JobFailure, NextTry, failure_words, next_try
from serving.wire.day_night_state import JobState
from serving.wire.telemetry import EventKind
from tests.serving.server.day_night.lending_engine import LendingEngine
from tests.serving.server.day_night.nights import NIGHT, a_controller, at, until

LIMITS = HandoverLimits(backoff_s=5.0, attempts_max=3)
NOON_S = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def of(phase: JobPhase, count: int = 1, *, wanted: bool = True, step: int | None = 50) -> NextTry:
    job = HandoverJob(phase=phase, starts=Failures(count=count, last_s=NOON_S))
    return next_try(job, wanted=wanted, checkpoint_step=step, limits=LIMITS)


def test_a_crash_is_followed_by_a_start_from_the_checkpoint_after_a_wait_that_doubles() -> None:
    assert of(JobPhase.CRASHED) == NextTry(
        words="it is started again from step 50", unix_s=NOON_S + 5
    )
    assert of(JobPhase.CRASHED, 2, step=None) == NextTry(
        words="it is started again from its beginning", unix_s=NOON_S + 10
    )


@pytest.mark.parametrize(
    ("following", "words"),
    [
        (of(JobPhase.CRASHED, 3), "after 3 failures in a row it is not started again until"),
        (of(JobPhase.FAILED), "it is not started again, for it would end the same way"),
        (of(JobPhase.CRASHED, wanted=False), "no chips are wanted for it now"),
        (of(JobPhase.RUNNING), "it has been started again"),
    ],
)
def test_where_no_start_is_due_it_says_why(following: NextTry, words: str) -> None:
    assert following.words.startswith(words)
    assert following.unix_s is None


def test_the_words_have_the_wall_s_time() -> None:
    failure = JobFailure(why="no room", unix_s=NOON_S, count=2)

    assert failure_words(failure, of(JobPhase.CRASHED, 2)) == (
        "failed at 2023-11-14 22:13:20 UTC, 2 times in a row: no room; it is started again from "
        "step 50 at 2023-11-14 22:13:30 UTC"
    )


@pytest.mark.process
def test_a_refusal_is_kept_told_once_and_not_erased_by_asking_again(
    lender: LendingEngine, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller = a_controller(lender, directory, how="refuses", policy="manual")
    told: list[str] = []
    controller.on_job_failure = told.append

    async def job() -> JobState:
        return day_night_state(controller, await controller.snapshot()).job

    async def day() -> None:
        controller.set_phase(1, HandoverPhase.TRAINING)
        await until(controller, lambda: controller.handover.job_failure is not None)
        await until(controller, lambda: not lender.going)
        first = await job()
        assert "expected more; it is not started again, for it would end the" in first.trouble
        assert first.failed_unix_s is not None
        assert (first.next_try_unix_s, first.failures) == (None, 1)
        controller.set_phase(1, HandoverPhase.SERVING)
        controller.set_phase(1, HandoverPhase.TRAINING)
        for _ in range(3):
            await controller.tick()
        again = await job()
        assert (again.failures, again.failed_unix_s) == (0, first.failed_unix_s)
        assert "expected more" in again.trouble

    with caplog.at_level(logging.WARNING, "vllm.serving.controller.day_night"):
        asyncio.run(day())
    (words,) = told
    assert words.startswith("the training job failed at 20")
    assert words in caplog.messages


@pytest.mark.process
def test_a_crash_has_the_time_of_the_next_start_and_a_step_ends_it(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, how="dies")

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, lambda: controller.handover.job_failure is not None)
        job = day_night_state(controller, await controller.snapshot()).job
        assert "it ended without a word; it is started again from its beginning at" in job.trouble
        assert job.failed_unix_s is not None
        assert job.next_try_unix_s is not None
        assert 0 < job.next_try_unix_s - job.failed_unix_s <= 0.1

    asyncio.run(night())


def test_a_failure_is_an_event() -> None:
    async def watched() -> None:
        watch = EngineWatch(engine=None)  # type: ignore[arg-type]  # it is not asked
        watch.job_failed("the training job failed: no room")
        async for event, lost in watch.events(0):
            assert (event.number, event.kind, lost) == (1, EventKind.JOB, 0)
            assert event.words == "the training job failed: no room"
            return

    asyncio.run(watched())
