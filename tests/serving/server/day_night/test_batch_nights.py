"""Nights of a controller whose free groups batch requests have first."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serving.policy.day_night.night_work import ANY_TIME, BatchDemand, NightOrder, NightShare
from serving.server.day_night.controller import DayNight
from serving.wire.control_call import DrainRequest
from tests.serving.server.day_night.lending_engine import LendingEngine, a_settings, job_command
from tests.serving.server.day_night.nights import MORNING, NIGHT, NOON, QUICK, at, phases, until


class Batches:
    """`requests` wait; the last share is kept."""

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.last = ANY_TIME

    def demand(self) -> BatchDemand:
        return BatchDemand(requests=self.requests, due_requests=0, seats=40)

    def share(self, share: NightShare) -> None:
        self.last = share


def a_controller(
    lender: LendingEngine, directory: Path, batches: Batches, order: NightOrder
) -> DayNight:
    return DayNight(
        lender,
        replace(a_settings(directory), night_order=order),
        job_command=job_command(directory, "works"),
        batches=batches,
        limits=QUICK,
    )


@pytest.mark.process
def test_training_has_free_groups_once_the_batches_are_answered(
    lender: LendingEngine, directory: Path
) -> None:
    batches = Batches(requests=1_000)
    controller = a_controller(lender, directory, batches, NightOrder.BATCH_FIRST)

    async def night() -> None:
        assert not batches.last.may_run  # before it has looked
        at(lender, NOON)
        await controller.tick()
        assert batches.last.words == "1,000 batch requests wait for the night"
        at(lender, NIGHT)
        for _ in range(5):
            await controller.tick()
        assert lender.asked == []
        assert (batches.last.may_run, batches.last.held_groups) == (True, 3)
        decision = (await controller.snapshot()).decision
        assert decision.serving_groups == 4
        assert "3 more for batches: 1,000 batch requests, 10 seats a group" in decision.reason
        batches.requests = 0
        await until(controller, lambda: phases(lender) == ["training"] * 3)
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)
        assert not batches.last.may_run

    asyncio.run(night())


@pytest.mark.process
def test_a_batch_calls_training_groups_back(lender: LendingEngine, directory: Path) -> None:
    batches = Batches(requests=0)
    controller = a_controller(lender, directory, batches, NightOrder.BATCH_FIRST)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, lambda: phases(lender) == ["training"] * 3)
        batches.requests = 1_000
        await until(controller, lambda: not lender.going)
        assert controller.job.pid is None

    asyncio.run(night())


@pytest.mark.process
def test_training_first_leaves_batches_the_seats_of_groups_that_serve(
    lender: LendingEngine, directory: Path
) -> None:
    batches = Batches(requests=1_000)
    controller = a_controller(lender, directory, batches, NightOrder.TRAINING_FIRST)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, lambda: phases(lender) == ["training"] * 3)
        assert (batches.last.may_run, batches.last.held_groups) == (True, 0)
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)

    asyncio.run(night())


@pytest.mark.process
def test_for_batches_alone_nothing_trains(lender: LendingEngine, directory: Path) -> None:
    batches = Batches(requests=0)
    controller = a_controller(lender, directory, batches, NightOrder.BATCH_ALONE)

    async def night() -> None:
        at(lender, NIGHT)
        for _ in range(5):
            await controller.tick()
        assert not [asked for asked in lender.asked if isinstance(asked, DrainRequest)]
        controller.set_policy("manual")  # no policy says when it is night
        await controller.tick()
        assert batches.last == ANY_TIME

    asyncio.run(night())
