"""Hours, controllers and waiting for tests of a controller's nights."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.policy.day_night.handover import HandoverLimits
from serving.server.day_night.controller import DayNight
from serving.telemetry.recent_times import RecentTimes
from tests.serving.server.day_night.lending_engine import (
    HOUR_S,
    LendingEngine,
    a_settings,
    job_command,
)

NOON, NIGHT, MORNING = 0.0, 11.0, 19.0  # hours after the first noon
QUICK = HandoverLimits(stop_s=0.3, silent_s=30.0, backoff_s=0.01, backoff_max_s=0.1)


def a_controller(
    lender: LendingEngine,
    directory: Path,
    *,
    how: str = "works",
    slow_to_stop: bool = False,
    first_tokens: RecentTimes | None = None,
    begun_tpot: RecentTimes | None = None,
    **given: Any,
) -> DayNight:
    return DayNight(
        lender,
        a_settings(directory, **given),
        job_command=job_command(directory, how),
        first_tokens=first_tokens,
        begun_tpot=begun_tpot,
        limits=replace(QUICK, stop_s=30.0) if slow_to_stop else QUICK,
    )


def at(lender: LendingEngine, hours: float) -> None:
    lender.emulated_s = hours * HOUR_S


async def until(controller: DayNight, condition: Callable[[], bool], *, wall_s: float = 30) -> None:
    """Tick the controller until `condition` holds."""
    end_s = time.monotonic() + wall_s
    while not condition():
        assert time.monotonic() < end_s
        await controller.tick()
        await asyncio.sleep(0.01)  # another process is at work


def phases(lender: LendingEngine) -> list[str]:
    return [lease.phase for lease in lender.leases]


def trains(controller: DayNight, chips: int = 3) -> Callable[[], bool]:
    """Whether a job runs on that many chips and has taken a step."""

    def holds() -> bool:
        status = controller.job.status()
        if status is None or status.pid != controller.job.pid:
            return False
        return status.phase == "training" and status.chips == chips

    return holds


async def wait(condition: Callable[[], bool], *, wall_s: float = 30) -> None:
    end_s = time.monotonic() + wall_s
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)  # another task and another process are at work
