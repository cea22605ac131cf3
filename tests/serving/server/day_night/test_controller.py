"""Nights of a controller before an engine that lends and a job that is a real process."""

import asyncio
from pathlib import Path

import pytest

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from serving.policy.day_night.handover import HandoverPhase, JobPhase
from serving.policy.day_night.policy_text import parse_policy
from serving.policy.day_night.quantile import QuantilePolicy
from serving.server.day_night.day_night_report import day_night_state, forecasts
from serving.server.day_night.job_record import read_record
from serving.telemetry.recent_times import RecentTimes
from serving.wire.control_call import DrainRequest, PublishRequest, ResumeRequest
from serving.wire.day_night_state import DayNightState
from tests.serving.server.day_night.lending_engine import LendingEngine
from tests.serving.server.day_night.nights import (
    MORNING,
    NIGHT,
    NOON,
    QUICK,
    a_controller,
    at,
    phases,
    trains,
    until,
)
from tests.serving.server.day_night.test_publish_candidate import a_checkpoint


@pytest.mark.process
def test_a_night_by_hand(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NOON)
        await controller.tick()
        assert lender.asked == []  # by day nothing changes hands
        at(lender, NIGHT)
        await until(controller, trains(controller))
        assert phases(lender) == ["training"] * 3
        at(lender, MORNING)
        await until(controller, lambda: phases(lender) == ["serving"] * 3)
        await controller.tick()  # it sees that they do

    asyncio.run(night())
    drains = [asked for asked in lender.asked if isinstance(asked, DrainRequest)]
    assert drains == [DrainRequest(chips=(chip,), grace_s=2.0) for chip in (1, 2, 3)]
    assert {asked.lease for asked in lender.asked if isinstance(asked, ResumeRequest)} == {1, 2, 3}
    assert controller.job.pid is None
    assert controller.handover.returns.last_s == 0.0  # this engine's time stood still meanwhile
    saved = int((directory / "saved").read_text())
    assert saved > 0
    training = [lease.training for lease in lender.leases]
    assert [told is not None and told.steps for told in training] == [saved] * 3
    # Each chip of three is told a third of the job's tokens and energy: 2 J a step.
    assert sum(told.tokens for told in training if told) == pytest.approx(64 * saved, abs=3 / 2)
    assert sum(told.joules for told in training if told) == pytest.approx(2.0 * saved)


@pytest.mark.process
def test_a_group_with_a_lost_chip_trains_on_the_others(
    lender: LendingEngine, directory: Path
) -> None:
    lender.lost.add(2)
    controller = a_controller(lender, directory, group_chips=2, lend_groups=1)

    async def night() -> DayNightState:
        at(lender, NIGHT)
        await until(controller, trains(controller, chips=1))
        seen = day_night_state(controller, await controller.snapshot())
        at(lender, MORNING)
        await until(controller, lambda: phases(lender) == ["serving"])
        return seen

    seen = asyncio.run(night())
    assert seen.job.chips == (3,)
    assert [(group.phase, group.failures) for group in seen.groups] == [
        ("serving", 0),
        ("training", 0),
    ]
    training = lender.leases[0].training
    assert training is not None
    assert training.joules == pytest.approx(2.0 * int((directory / "saved").read_text()))


@pytest.mark.process
def test_the_next_night_goes_on_from_the_last(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory)

    async def nights() -> list[int]:
        reached = []
        for day in range(3):
            at(lender, 24 * day + NIGHT)
            await until(controller, trains(controller))
            at(lender, 24 * day + MORNING)
            await until(controller, lambda: not lender.going)
            reached.append(int((directory / "saved").read_text()))
        return reached

    first, second, third = asyncio.run(nights())
    assert 0 < first < second < third
    # What each night's leases were told is that night's own.
    assert [lease.training.steps if lease.training else None for lease in lender.leases[::3]] == [
        first,
        second - first,
        third - second,
    ]


@pytest.mark.process
def test_a_refused_drain_is_told_and_not_tried_for_ever(
    lender: LendingEngine, directory: Path
) -> None:
    lender.refuses = "1,234 expert slots are needed, there are 1,000"
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NIGHT)
        for _ in range(60):
            await controller.tick()
            await asyncio.sleep(0.01)
        groups = day_night_state(controller, await controller.snapshot()).groups
        assert [group.failures for group in groups] == [0, 5, 5, 5]
        assert groups[1].trouble == lender.refuses
        assert len(lender.asked) == 15
        # The next night is another try.
        lender.refuses = ""
        at(lender, MORNING)
        await controller.tick()
        at(lender, 24 + NIGHT)
        await until(controller, trains(controller))

    asyncio.run(night())


@pytest.mark.process
def test_by_hand_a_group_at_a_time(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory, policy="manual")

    async def day() -> None:
        controller.set_phase(3, HandoverPhase.TRAINING)
        await until(controller, trains(controller, chips=1))
        controller.set_phase(1, HandoverPhase.TRAINING)
        await until(controller, trains(controller, chips=2))  # it has begun anew, on both
        controller.set_phase(3, HandoverPhase.SERVING)
        await until(controller, trains(controller, chips=1))
        record = read_record(directory)
        assert record is not None
        assert record.chips == (1,)
        controller.set_policy("never")
        await until(controller, lambda: not lender.going)

    asyncio.run(day())


@pytest.mark.process
def test_manual_leaves_everything_as_it_is(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        controller.set_policy("manual")
        at(lender, MORNING)
        for _ in range(20):
            await controller.tick()
        assert phases(lender) == ["training"] * 3

    asyncio.run(night())


@pytest.mark.parametrize(
    ("group", "phase", "line"),
    [
        (4, HandoverPhase.TRAINING, "group=4: expected 0 to 3"),
        (-1, HandoverPhase.TRAINING, "group=-1: expected 0 to 3"),
        (1, HandoverPhase.DRAINING, "phase=draining: expected serving or training"),
    ],
)
def test_what_no_group_can_do_is_one_line(
    lender: LendingEngine, directory: Path, group: int, phase: HandoverPhase, line: str
) -> None:
    controller = a_controller(lender, directory, policy="manual")

    with pytest.raises(ConfigError, match=line):
        controller.set_phase(group, phase)


def test_at_least_one_group_serves(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory, policy="manual")
    for group in (0, 1, 2):
        controller.set_phase(group, HandoverPhase.TRAINING)

    with pytest.raises(ConfigError, match="at most 3 groups that train"):
        controller.set_phase(3, HandoverPhase.TRAINING)


@pytest.mark.process
def test_it_says_everything(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory)

    async def night() -> None:
        at(lender, NOON)
        by_day = day_night_state(controller, await controller.snapshot())
        assert by_day.time_of_day.split()[1:] == ["12:00", "UTC"]
        assert (by_day.groups_desired, by_day.job.phase) == (4, JobPhase.ABSENT)
        assert by_day.next_change_day_s == by_day.day_s + 10 * 3600
        at(lender, NIGHT)
        await until(controller, trains(controller))
        by_night = day_night_state(controller, await controller.snapshot())
        assert [group.phase for group in by_night.groups] == ["serving", *["training"] * 3]
        assert [group.lease for group in by_night.groups] == [None, 1, 2, 3]
        assert by_night.groups_desired == 1
        assert by_night.next_change_day_s == by_night.day_s + 7 * 3600
        assert by_night.job.chips == (1, 2, 3)
        assert by_night.job.pid is not None
        assert by_night.job.step > 0
        assert by_night.leases == tuple(lender.leases)

    asyncio.run(night())


@pytest.mark.process
def test_the_morning_serves_the_night_s_weights_when_they_are_better(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, publish="if-better", slow_to_stop=True)
    (directory / "hold").touch()

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        at(lender, MORNING)
        await until(controller, (directory / "saved").exists)
        step = int((directory / "saved").read_text())
        a_checkpoint(directory, step, nats=9.0 / (1 + step))  # this job writes none of its own
        (directory / "hold").unlink()
        await until(controller, lambda: not lender.going)

    asyncio.run(night())
    published = [type(asked) for asked in lender.asked[3:]]
    assert published == [PublishRequest, *[ResumeRequest] * 3]  # before the chips come back, once
    step = int((directory / "saved").read_text())
    assert lender.versions[-1].weights_dir == str(directory / "published" / f"step-{step}")
    assert controller.publisher.words.startswith(f"version 2: step {step}, held-out loss")


@pytest.mark.process
def test_weights_that_cannot_be_read_hold_no_chip_up(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, publish="if-better")

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        at(lender, MORNING)
        await until(controller, lambda: not lender.going)  # there is no checkpoint on the disk

    asyncio.run(night())
    assert "was refused" in controller.publisher.words
    assert len(lender.versions) == 1


@pytest.mark.process
def test_a_burst_at_night_takes_chips_back(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory, group_requests_per_s=10.0)

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        at(lender, NIGHT + 1)
        lender.arrived = 25  # in an hour of the day, which is an emulated second
        await until(controller, trains(controller, chips=1))
        seen = await controller.snapshot()
        assert seen.decision.serving_groups == 3  # 25 a second and a tenth more, of 10 each
        assert list(seen.handover.phases) == ["serving"] * 3 + ["training"]

    asyncio.run(night())


@pytest.mark.process
def test_late_first_tokens_take_chips_back_one_change_at_a_time(
    lender: LendingEngine, directory: Path
) -> None:
    times = RecentTimes()
    controller = a_controller(
        lender, directory, first_tokens=times, group_requests_per_s=10.0, reading_s=0.5
    )

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        changed_s = lender.emulated_s
        at(lender, NIGHT + 1)
        times.add(changed_s, [9.0] * 500)  # late before the change: it answers them
        assert (await controller.snapshot()).observed.ttft_attainment is None
        times.add(lender.emulated_s, [0.1] * 95 + [1.1] * 5)
        seen = await controller.snapshot()
        assert seen.observed.ttft_attainment == 0.95
        assert seen.decision.serving_groups == 2  # one more, of four
        state = day_night_state(controller, seen)
        assert (state.ttft_attainment, state.slo) == (0.95, "TTFT p99 <= 1000 ms")
        again = await controller.snapshot()
        assert again.observed.ttft_attainment is None
        assert again.decision.serving_groups == 2

    asyncio.run(night())


@pytest.mark.process
def test_late_further_tokens_take_chips_back_too(lender: LendingEngine, directory: Path) -> None:
    first, further = RecentTimes(), RecentTimes()
    controller = a_controller(
        lender,
        directory,
        first_tokens=first,
        begun_tpot=further,
        group_requests_per_s=10.0,
        slo=Slo.parse("ttft=1s,tpot=30ms"),
    )

    async def night() -> None:
        at(lender, NIGHT)
        await until(controller, trains(controller))
        changed_s = lender.emulated_s
        at(lender, NIGHT + 1)
        first.add(lender.emulated_s, [0.1] * 500)
        further.add(changed_s, [0.09] * 500)  # of requests that began before the change
        assert (await controller.snapshot()).observed.tpot_attainment is None
        further.add(lender.emulated_s, [0.02] * 90 + [0.04] * 10)
        seen = await controller.snapshot()
        assert (seen.observed.ttft_attainment, seen.observed.tpot_attainment) == (1.0, 0.9)
        assert seen.decision.serving_groups == 2
        assert seen.decision.reason == "TPOT met by 90.0%, below 99.0%"
        assert day_night_state(controller, seen).tpot_attainment == 0.9

    asyncio.run(night())


def test_a_burst_s_response_is_its_stated_parts(lender: LendingEngine, directory: Path) -> None:
    controller = a_controller(lender, directory, reading_s=0.5)
    state = day_night_state(controller, asyncio.run(controller.snapshot()))
    seen_s = 300 / 3600 + 0.3 / 10  # a bucket of a day whose hours are seconds, and a look
    assert state.burst_seen_s == pytest.approx(seen_s)
    assert state.burst_response_s == pytest.approx(seen_s + QUICK.stop_s / 10 + 0.5)


def test_a_return_that_was_held_up_does_not_cost_the_next_night(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(lender, directory, reading_s=0.5)
    controller.handover.returns.last_s = 20.0  # the engine slept for most of a day
    seen = asyncio.run(controller.snapshot())
    assert seen.observed.restore_s == pytest.approx((QUICK.stop_s / 10 + 0.5) * 3600)


@pytest.mark.long
def test_the_demand_that_was_seen_foretells_load_and_the_next_change(
    lender: LendingEngine, directory: Path
) -> None:
    controller = a_controller(
        lender, directory, policy="quantile:0.5,dwell=0s", group_requests_per_s=10.0
    )

    async def days() -> tuple[DayNightState, DayNightState]:
        at(lender, NOON)
        early = day_night_state(controller, await controller.snapshot())
        for bucket in range(1, 12 * 26 + 1):  # a day and 2 h, busy from 6 to 18 h after noon
            lender.arrived += 3 if 6 <= bucket / 12 % 24 < 18 else 0
            at(lender, NOON + bucket / 12)
            seen = await controller.snapshot()
        late = day_night_state(controller, seen)
        assert [each.confidence for each in forecasts(parse_policy("demand"), seen.observed)] == [
            QuantilePolicy().confidence
        ] * 2
        assert forecasts(parse_policy("never"), seen.observed) == ()
        return early, late

    early, late = asyncio.run(days())
    assert (early.forecasts, early.next_change_day_s) == ((), None)
    assert early.next_change_if == "nobody can say before a day has been seen"
    soon, later = late.forecasts
    assert 0 < soon.window_s < later.window_s
    assert soon.confidence == 0.5
    assert soon.expected_per_s == pytest.approx(0.0, abs=1.0)  # 14:00, and quiet until 18:00
    assert late.groups_desired == 1
    assert late.next_change_if == "if demand goes as it did a day before"
    assert late.next_change_day_s is not None
    # 36 requests a second, which four groups serve, came at 18:00.
    assert (late.next_change_day_s - late.day_s) / 3600 == pytest.approx(4.0, abs=0.6)
