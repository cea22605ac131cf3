"""Nights in which something breaks: the controller, the job, a chip, the engine."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from serving.policy.day_night.handover import JobPhase
from serving.server.day_night.day_night_report import day_night_state
from serving.server.day_night.job_record import read_record
from serving.server.engine_call import EngineGone
from tests.serving.server.day_night.lending_engine import LendingEngine
from tests.serving.server.day_night.nights import (
    MORNING,
    NIGHT,
    QUICK,
    a_controller,
    at,
    trains,
    until,
    wait,
)

pytestmark = pytest.mark.process


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(14))
def test_a_crash_at_any_call_loses_nothing(
    lender: LendingEngine, directory: Path, when: str, nth: int
) -> None:
    controller = a_controller(lender, directory)
    calls = 0

    def fail(now: str, request: object) -> None:
        nonlocal calls
        calls += now == when
        if now == when and calls == nth:
            raise RuntimeError("the engine said something strange")

    async def tick() -> None:
        loop = asyncio.create_task(controller.tick())
        await asyncio.wait({loop})
        loop.exception()

    async def night() -> None:
        at(lender, NIGHT)
        end_s = time.monotonic() + 30
        while not trains(controller)():
            assert time.monotonic() < end_s
            await tick()
            await asyncio.sleep(0.005)
        at(lender, MORNING)
        while lender.going:
            assert time.monotonic() < end_s
            await tick()
            await asyncio.sleep(0.005)

    lender.fails = fail
    asyncio.run(night())
    assert calls >= nth
    assert controller.job.pid is None
    assert len(lender.leases) == 3  # no group was drained twice


@pytest.mark.parametrize("action", ["start", "ask_stop", "seen"])
def test_a_crash_at_any_touch_of_the_job_loses_nothing(
    lender: LendingEngine, directory: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = a_controller(lender, directory)
    real = getattr(controller.job, action)
    failures = iter([True])

    def fails_once(*given: Any) -> Any:
        result = real(*given)
        if next(failures, False):
            raise OSError("no memory")
        return result

    monkeypatch.setattr(controller.job, action, fails_once)
    monkeypatch.setattr("serving.server.day_night.controller.TICK_S", 0.01)
    monkeypatch.setattr("serving.server.day_night.controller._AGAIN_S", 0.01)

    async def night() -> None:
        at(lender, NIGHT)
        await controller.start()
        await wait(trains(controller))
        at(lender, MORNING)
        await wait(lambda: not lender.going)
        await controller.stop()

    asyncio.run(night())
    assert controller.restarts == 1
    assert "no memory" in controller.trouble
    assert len(lender.leases) == 3


def test_a_loop_that_is_cancelled_begins_again(
    lender: LendingEngine, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = a_controller(lender, directory)
    monkeypatch.setattr("serving.server.day_night.controller.TICK_S", 0.01)
    monkeypatch.setattr("serving.server.day_night.controller._AGAIN_S", 0.01)

    async def cancelled() -> None:
        await controller.start()
        (loop,) = [
            task
            for task in asyncio.all_tasks()
            if getattr(task.get_coro(), "__name__", "") == "_loop"
        ] or [await first_loop()]
        loop.cancel()
        at(lender, NIGHT)
        await wait(trains(controller))
        await controller.stop()

    async def first_loop() -> "asyncio.Task[Any]":
        await asyncio.sleep(0.05)
        (loop,) = [
            task
            for task in asyncio.all_tasks()
            if getattr(task.get_coro(), "__name__", "") == "_loop"
        ]
        return loop

    asyncio.run(cancelled())
    assert controller.restarts == 1


def test_a_job_that_is_killed_starts_again_from_its_checkpoint(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        record = read_record(directory)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        await until(controller, lambda: not record.running)
        await until(controller, trains(controller))
        assert read_record(directory) != record
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)

    asyncio.run(night())
    assert len(lender.leases) == 3


def test_a_job_that_dies_again_and_again_gives_the_chips_back(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, how="dies")

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, lambda: len(lender.leases) == 3 and not lender.going)
        for _ in range(5):
            await controller.tick()
        seen = await controller.snapshot()
        state = day_night_state(controller, seen)
        assert state.job.phase == JobPhase.CRASHED
        assert state.job.failures == QUICK.attempts_max

    asyncio.run(night())
    assert len(lender.leases) == 3


def test_a_job_that_refuses_its_settings_is_not_tried_again(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, how="refuses")

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, lambda: len(lender.leases) == 3 and not lender.going)
        state = day_night_state(controller, await controller.snapshot())
        assert (state.job.phase, state.job.failures) == (JobPhase.FAILED, 1)
        assert "expected more" in state.job.trouble

    asyncio.run(night())


def test_a_job_that_does_not_stop_is_killed(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory, how="deaf")

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)

    asyncio.run(night())
    assert controller.job.pid is None
    assert not (directory / "saved").exists()


def test_a_chip_that_fails_while_it_trains_leaves_the_job_to_the_others(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        lender.lose(2)
        await until(controller, trains(controller, chips=2))
        record = read_record(directory)
        assert record is not None
        assert record.chips == (1, 3)
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)

    asyncio.run(night())


def test_when_the_engine_goes_so_does_the_controller_and_its_job(
    lender: LendingEngine, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = a_controller(lender, directory)
    monkeypatch.setattr("serving.server.day_night.controller.TICK_S", 0.01)

    async def end() -> None:
        at(lender, NIGHT)
        await controller.start()
        await wait(trains(controller))
        lender.errored = True
        assert controller._task is not None
        await asyncio.wait({controller._task}, timeout=10)
        assert controller._task.done()
        await controller.stop()
        with pytest.raises(EngineGone):
            await controller.snapshot()

    asyncio.run(end())
    assert controller.job.pid is None
    assert (directory / "saved").exists()  # it was asked, and saved
