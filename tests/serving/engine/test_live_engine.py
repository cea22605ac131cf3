"""A running engine: steps in emulated time, and the control service's questions between them."""

import time

import pytest

from emulator.chip.commands import Combine
from emulator.sim.clock import DilatedClock, VirtualClock
from emulator.specs.fault import Fault, FaultKind
from serving.engine.fault_log import Moved
from serving.engine.scheduler_state import RankQueues
from serving.wire.control_call import (
    ClockRequest,
    ClockState,
    ControlRequest,
    FaultReport,
    HealReport,
    HealRequest,
    InjectRequest,
    Refusal,
    reply_from_json,
)
from serving.wire.machine_state import FaultStage
from tests.serving.plugin.running_engine import Running, heard, lose

BUSY = RankQueues(running=1, waiting=0, kv_blocks_used=1)


@pytest.mark.long
def test_a_step_is_timed_by_the_cost_model_and_counted_once() -> None:
    running = Running()
    first = running.step(0, 1, 2, 3)
    second = running.step(0)

    assert first.end_s == second.begin_s
    assert second.end_s > second.begin_s
    snapshot = second.snapshot
    assert (snapshot.steps, snapshot.pause_s, snapshot.lag_s) == (2, 0.0, 0.0)
    assert snapshot.busy_s == pytest.approx(second.end_s)
    assert (snapshot.chips_up, snapshot.ranks_up, snapshot.faults) == (4, 4, 0)
    assert snapshot.expert_imbalance > 1.0
    assert second.lost_ranks == ()
    assert second.ranks_up == (True,) * 4


@pytest.mark.long
def test_a_step_reports_its_energy_and_the_chips_of_the_ranks_that_computed() -> None:
    running = Running()
    first = running.step(0, 1, 2, 3)
    second = running.step(2)

    assert first.energy is not None
    assert second.energy is not None
    assert (first.energy.ranks, second.energy.ranks) == ((0, 1, 2, 3), (2,))
    assert [second.energy.chips_of(rank) for rank in (0, 2)] == [(0,), (2,)]
    for kind in ("chip_joules", "facility_joules"):  # no time was idle
        before, total = getattr(first.snapshot, kind), getattr(second.snapshot, kind)
        assert getattr(first.energy, kind) == pytest.approx(before)
        assert getattr(second.energy, kind) == pytest.approx(total - before)
    assert running.engine.report().energy is None  # nothing is computed between steps


@pytest.mark.long
def test_the_energy_of_a_step_is_without_the_pause_that_held_it_up() -> None:
    running = Running()
    whole = running.step(0, 1, 2, 3)
    running.inject(lose(1))
    report = running.step(0, 1, 2, 3)

    assert whole.energy is not None
    assert report.energy is not None
    assert report.energy.ranks == (0, 2, 3)  # rank 1 is lost, and computed nothing
    assert report.snapshot.pause_s > 0
    idle_watts = 3 * running.parts.machine.cost_model.idle_chip_watts
    assert report.snapshot.chip_joules == pytest.approx(
        whole.energy.chip_joules
        + report.energy.chip_joules
        + report.snapshot.pause_s * idle_watts  # of the chips that are left, and no rank's
    )


@pytest.mark.long
def test_a_recovery_is_a_pause_and_not_busy_time() -> None:
    running = Running()
    whole = running.step(0, 1, 2, 3)
    running.inject(Fault(kind=FaultKind.HANG_CHIP, chip=1))
    report = running.step(0, 1, 2, 3)

    assert report.lost_ranks == (1,)
    assert report.ranks_up == (True, False, True, True)
    (record,) = running.state().faults
    assert record.recovery is not None
    pause_s = record.recovery.emulated_ns / 1e9
    assert pause_s > 30.0  # a silent chip is given up after the runtime's timeout
    assert report.snapshot.pause_s == pytest.approx(pause_s)
    busy_s = report.snapshot.busy_s
    assert busy_s < 2.5 * whole.snapshot.busy_s
    assert report.end_s == pytest.approx(busy_s + pause_s)
    assert (report.snapshot.chips_up, report.snapshot.ranks_up) == (3, 3)


@pytest.mark.long
def test_an_attempt_that_broke_off_is_charged_as_a_whole_step() -> None:
    running = Running()
    running.parts.fleet.doom(1, Combine)
    report = running.step(0, 1, 2, 3)

    (record,) = running.state().faults
    assert record.recovery is not None
    pause_s = record.recovery.emulated_ns / 1e9 + report.snapshot.busy_s
    assert report.snapshot.pause_s == pytest.approx(pause_s)


@pytest.mark.long
@pytest.mark.parametrize("running_requests", [0, 1])
def test_an_idle_engine_meets_a_fault_at_once_and_a_busy_one_in_its_next_step(
    running_requests: int,
) -> None:
    running = Running(chips=2)
    queues = RankQueues(running=running_requests, waiting=0, kv_blocks_used=0)
    running.engine.hear(heard(rank_states=(queues, queues)))
    running.inject(lose(1))

    stage = FaultStage.PENDING if running_requests else FaultStage.RECOVERED
    assert [record.stage for record in running.state().faults] == [stage]
    assert running.step(0).lost_ranks == (1,)
    assert [record.stage for record in running.state().faults] == [FaultStage.RECOVERED]


@pytest.mark.long
def test_what_the_scheduler_moved_is_counted_to_the_fault_that_made_it_move() -> None:
    running = Running()
    running.inject(lose(2))
    running.step(0, 2)
    moved = tuple(Moved(rank=2, name=name) for name in "abcde")
    running.engine.hear(heard(moved_requests=5, moved=moved, empty_rank_steps=7))
    report = running.step(0)

    (record,) = running.state().faults
    assert record.recovery is not None
    assert (record.stage, record.recovery.requests_moved) == (FaultStage.RECOVERED, 5)
    assert record.recovery.moved == ("a", "b", "c", "d", "e")
    assert (report.snapshot.requests_moved, report.snapshot.empty_rank_steps) == (5, 7)


@pytest.mark.long
def test_two_faults_that_are_met_together_are_each_counted_their_own_requests() -> None:
    running = Running()
    running.step(0, 1, 2, 3)
    running.engine.hear(heard(rank_states=(BUSY,) * 4))
    running.inject(lose(1))
    running.inject(lose(2))
    assert running.step(0, 1, 2, 3).lost_ranks == (1, 2)
    moved = (
        Moved(rank=1, name="a"),
        Moved(rank=2, name="b"),
        Moved(rank=1, name="c", failed=True),
    )
    running.engine.hear(heard(moved=moved, rank_states=(BUSY,) * 4))

    first, second = running.state().faults
    assert first.recovery is not None
    assert second.recovery is not None
    assert (first.recovery.moved, first.recovery.failed) == (("a",), ("c",))
    assert (second.recovery.moved, second.recovery.failed) == (("b",), ())
    assert (first.stage, second.stage) == (FaultStage.FAILED, FaultStage.RECOVERED)


@pytest.mark.long
def test_a_request_that_waited_for_a_rank_is_counted_when_its_fate_is_known() -> None:
    running = Running()
    running.step(0, 1, 2, 3)
    running.engine.hear(heard(rank_states=(BUSY,) * 4))
    running.inject(lose(1))
    running.step(0, 1, 2, 3)
    running.engine.hear(heard(rank_states=(BUSY,) * 4))
    late = Moved(rank=1, name="late")
    running.engine.hear(heard(moved=(late,), rank_states=(BUSY,) * 4))

    (record,) = running.state().faults
    assert record.recovery is not None
    assert record.recovery.moved == ("late",)


@pytest.mark.long
def test_a_request_that_ends_for_want_of_a_rank_is_in_the_account_of_the_last_fault() -> None:
    running = Running()
    running.step(0, 1, 2, 3)
    running.engine.hear(heard(rank_states=(BUSY,) * 4))
    running.inject(lose(2))
    running.step(0, 1, 2, 3)
    lent = Moved(rank=3, name="from a lent rank", failed=True)
    running.engine.hear(heard(moved=(lent,), rank_states=(BUSY,) * 4))

    (record,) = running.state().faults
    assert record.recovery is not None
    assert record.recovery.failed == ("from a lent rank",)


@pytest.mark.long
def test_a_repair_brings_experts_home_and_the_links_are_charged_for_it() -> None:
    running = Running()
    home = running.parts.machine.placement
    running.step(0, 1, 2, 3)
    running.inject(lose(3))
    running.step(0, 1, 2)
    paused_s = running.state().faults[0].recovery
    assert running.ask(HealRequest(chip=3)) == HealReport(healed=(1,))

    assert (running.parts.machine.placement.expert_of_slot == home.expert_of_slot).all()
    assert (running.parts.fleet.placement.expert_of_slot == home.expert_of_slot).all()
    report = running.step(0, 1, 2)
    assert report.lost_ranks == (3,)
    assert report.ranks_up == (True,) * 4
    assert paused_s is not None
    assert report.snapshot.pause_s > paused_s.emulated_ns / 1e9
    assert running.step(0, 1, 2, 3).lost_ranks == ()


def test_a_dry_run_answers_without_a_number() -> None:
    running = Running(chips=1)
    reply = running.ask(InjectRequest(fault=lose(0), dry_run=True))

    assert isinstance(reply, FaultReport)
    assert (reply.accepted, reply.survivable, reply.number) == (False, False, None)
    assert running.state().faults == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (InjectRequest(fault=lose(9)), "chip=9: expected 0 to 3, of the partition's 4 chips"),
        (HealRequest(chip=9), "chip=9: expected one of the machine's 4 chips"),
        (HealRequest(rack=9), "rack=9: expected 0 to 1"),
    ],
)
def test_what_cannot_be_met_is_refused_in_one_line(request_: ControlRequest, message: str) -> None:
    reply = Running().ask(request_)

    assert isinstance(reply, Refusal)
    assert reply.message == message


def test_a_fault_that_makes_no_sense_is_refused_before_it_is_looked_at() -> None:
    given = '{"method":"inject","fault":{"kind":"slow-chip","chip":1,"factor":0.5}}'
    reply = reply_from_json(Running().engine.control(given))

    assert isinstance(reply, Refusal)
    assert "factor=0.5: expected a number above 1" in reply.message


@pytest.mark.long
def test_a_dense_model_is_served_and_loses_chips_like_any_other() -> None:
    running = Running(model="llama-3.1-8b")
    running.step(0, 1, 2, 3)
    running.inject(lose(0))
    report = running.step(0, 1, 2, 3)

    assert report.lost_ranks == (0,)
    assert running.state().routing == "none (dense)"
    assert running.state().chips[1].expert_slots == 0
    assert running.step(1, 2, 3).snapshot.expert_imbalance is None


@pytest.mark.long
@pytest.mark.parametrize("continues", [True, False])
def test_a_fault_between_steps_without_a_gap_comes_at_the_end_of_the_last(continues: bool) -> None:
    clock = VirtualClock()
    running = Running(clock)
    last = running.step(0, 1, 2, 3)
    clock.wait_until_ns(clock.now_ns() + 2_000_000)  # the host takes its time
    running.wake.continues = continues
    running.inject(lose(1))
    running.wake.continues = False
    (record,) = running.state().faults

    late_s = 0.0 if continues else 0.002
    assert record.injected_emulated_s == pytest.approx(last.end_s + late_s, abs=1e-12)


@pytest.mark.long
def test_the_clock_says_emulated_and_real_time_of_one_moment() -> None:
    wall_ns = 0
    running = Running(DilatedClock(4.0, wall_ns=lambda: wall_ns))
    wall_ns = 10**9
    before_s = time.time()
    clock = running.ask(ClockRequest())

    assert isinstance(clock, ClockState)
    assert (clock.emulated_s, clock.dilation) == (0.25, 4.0)
    assert before_s <= clock.unix_s <= time.time()
