"""Groups of chips leave for training and come back, while the others serve: no text changes."""

from typing import Any

import numpy as np
import pytest

from emulator.errors import HbmExhausted
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.hbm_usage import HbmUse, use_of
from emulator.specs.placement import EMPTY
from emulator.specs.seating import VACANT
from serving.wire.control_call import Refusal, RefusalCode, ResumeRequest
from tests.serving.plugin.counted_steps import CountedSteps
from tests.serving.plugin.leased_requests import (
    Served,
    drain,
    lease_of,
    note,
    refused_drain,
    resume,
)
from tests.serving.plugin.live_parts import texts_of_one_chip
from tests.serving.plugin.running_engine import Running, lose


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return texts_of_one_chip()


def check_machine(running: Running) -> None:
    """Processes, seats, experts and memory agree, whatever is lent out."""
    parts = running.parts
    machine, fleet = parts.machine, parts.fleet
    up = np.flatnonzero(machine.chips_up).tolist()
    assert sorted(fleet.live_chips) == up
    assert not set(machine.lent_positions) & set(up)
    machine.hbm.check()
    partition = machine.partition
    open_groups = {
        chip // partition.ep
        for rank in np.flatnonzero(machine.ranks_up).tolist()
        for chip in partition.chips_of_rank(rank)
    }
    for placement in (machine.placement, fleet.placement):
        vacant = np.flatnonzero(~machine.chips_up)
        assert (placement.expert_of_slot[:, vacant] == EMPTY).all()
        assert not {group for group, _, _ in placement.missing()} & open_groups
    for position in machine.lent_positions:
        owners = {use_of(o) for s in machine.hbm.usage()[position] for o in s.owner_bytes}
        assert owners <= {HbmUse.MICROCODE, HbmUse.TRAINING} or "restoring" in {
            lease.phase for lease in running.state().leases
        }


@pytest.mark.long
def test_a_rank_leaves_and_comes_back_by_hand(expected: dict[str, list[int]]) -> None:
    running = Running()
    home = running.parts.machine.placement.expert_of_slot.copy()
    before = [s.free_bytes for s in running.parts.machine.hbm.usage()[3]]
    served = Served(running)
    served.turn()
    report = drain(running, 3, grace_s=0.0)
    assert report.lease is not None
    assert (report.lease.number, report.lease.phase) == (1, "draining")
    served.turn()

    lease = lease_of(running, 1)
    assert (lease.phase, lease.ranks, lease.reason) == ("training", (3,), "lent out")
    # 36 experts of each of 4 layers lay on the chip, each of 3 x 112 x 16 values of 2 bytes.
    assert lease.experts_moved == 4 * 36
    assert lease.bytes_links == 4 * 36 * 3 * 112 * 16 * 2
    assert lease.moved_requests == 1
    machine = running.parts.machine
    assert machine.ranks_up.tolist() == [True, True, True, False]
    assert machine.seating.chip_of_position.tolist() == [0, 1, 2, VACANT]
    state = running.state()
    assert [chip.phase for chip in state.chips] == ["serving"] * 3 + ["training"]
    assert state.chips[3].health == "up"
    assert served.reports[-1].snapshot.chips_leased == 1
    check_machine(running)

    assert resume(running, 1).phase == "restoring"
    check_machine(running)
    assert served.serve_on() == expected
    for _ in range(5):
        running.step(0, 1)
    lease = lease_of(running, 1)
    assert (lease.phase, lease.reason) == ("serving", "all its ranks serve again")
    assert (machine.placement.expert_of_slot == home).all()
    assert (running.parts.fleet.placement.expert_of_slot == home).all()
    assert [s.free_bytes for s in machine.hbm.usage()[3]] == before
    assert machine.ranks_up.all()
    check_machine(running)
    assert lease.restore_s > 0
    assert lease.warm_s > 0
    assert lease.bytes_storage > 0
    assert lease.joules > 0
    # The scheduler may not go on with what it knew of the rank, and then all of it serves.
    assert 3 in {rank for report in served.reports for rank in report.lost_ranks}
    assert running.step(0, 1, 2, 3).ranks_up == (True,) * 4


@pytest.mark.long
def test_short_requests_end_within_the_grace_time_and_nothing_moves(
    expected: dict[str, list[int]],
) -> None:
    running = Running()
    served = Served(running)
    served.turn()
    drain(running, 2, 3, grace_s=1_000.0)
    assert served.turn().closed_ranks == (2, 3)
    assert served.serve_on() == expected
    served.turn()

    lease = lease_of(running, 1)
    assert (lease.phase, lease.drained_requests, lease.moved_requests) == ("training", 2, 0)
    assert lease.drain_s > 0
    assert served.moved == 0
    check_machine(running)


def test_a_drain_is_called_off_and_the_rank_goes_on_where_it_is(
    expected: dict[str, list[int]],
) -> None:
    running = Running()
    served = Served(running)
    served.turn()
    drain(running, 3, grace_s=1_000.0)
    served.turn()

    assert resume(running, 1).phase == "serving"
    assert served.turn().closed_ranks == ()
    assert served.serve_on() == expected
    assert served.moved == 0
    reply = running.ask(ResumeRequest(lease=1))
    assert isinstance(reply, Refusal)
    assert reply.message == "lease 1 has ended: called off while it drained"


@pytest.mark.long
def test_a_stand_in_s_text_is_the_same_while_its_chips_come_and_go(
    expected: dict[str, list[int]],
) -> None:
    running = Running(chips=8, model="gpt-oss-20b", tp=2)
    served = Served(running)
    texts = served.serve_on(
        {
            2: lambda: drain(running, 4, 5, 6, 7),
            5: lambda: check_machine(running),
            6: lambda: resume(running, 1),
        }
    )
    assert texts == expected
    check_machine(running)
    assert lease_of(running, 1).experts_moved == 4 * 24 * 4  # 24 layers, 4 experts on each chip


@pytest.mark.long
@pytest.mark.parametrize("kind", [FaultKind.LOSE_CHIP, FaultKind.HANG_CHIP])
def test_a_leaving_chip_dies_and_the_drain_is_off(
    kind: FaultKind, expected: dict[str, list[int]]
) -> None:
    running = Running()
    served = Served(running)
    texts = served.serve_on(
        {
            1: lambda: drain(running, 2, 3, grace_s=1_000.0),
            3: lambda: running.inject(Fault(kind=kind, chip=3)),
        }
    )
    assert texts == expected
    lease = lease_of(running, 1)
    assert (lease.phase, lease.lost_chips) == ("serving", (3,))
    assert lease.reason == "chips 3 were lost while it drained"
    assert running.parts.machine.ranks_up.tolist() == [True, True, True, False]
    check_machine(running)


@pytest.mark.long
def test_a_staying_chip_dies_while_others_are_lent_out(expected: dict[str, list[int]]) -> None:
    running = Running()
    served = Served(running)
    texts = served.serve_on(
        {1: lambda: drain(running, 3), 3: lambda: running.inject(lose(1)), 6: lambda: None}
    )
    assert texts == expected
    assert lease_of(running, 1).phase == "training"
    assert running.parts.machine.ranks_up.tolist() == [True, False, True, False]
    check_machine(running)


@pytest.mark.long
def test_lent_chips_are_called_back_when_nobody_else_is_left(
    expected: dict[str, list[int]],
) -> None:
    running = Running()
    served = Served(running)

    def strike() -> None:
        for chip in (0, 1, 2):
            assert running.inject(lose(chip)).survivable

    texts = served.serve_on({1: lambda: drain(running, 3), 3: strike})
    assert texts == expected
    lease = lease_of(running, 1)
    assert lease.phase == "serving"
    assert lease.reason.startswith("called back: without its chips nobody could have gone on")
    assert lease.bytes_storage > 0
    assert running.parts.machine.ranks_up.tolist() == [False, False, False, True]
    check_machine(running)


@pytest.mark.long
def test_a_lent_chip_that_is_lost_does_not_come_back(expected: dict[str, list[int]]) -> None:
    running = Running()
    served = Served(running)
    texts = served.serve_on(
        {
            1: lambda: drain(running, 2, 3),
            3: lambda: running.inject(lose(3)),
            4: lambda: resume(running, 1),
        }
    )
    assert texts == expected
    while lease_of(running, 1).phase != "serving":
        running.step(0)
    lease = lease_of(running, 1)
    assert lease.lost_chips == (3,)
    assert lease.reason == "chips 3 have failed, ranks 3 stay down"
    assert running.parts.machine.ranks_up.tolist() == [True, True, True, False]
    assert running.state().chips[3].health == "lost"
    check_machine(running)


@pytest.mark.long
def test_a_chip_that_is_lost_while_its_group_reads_weights_puts_the_return_off() -> None:
    running = Running(model="gpt-oss-20b", chips=8, computes=False)
    Served(running).turn()
    drain(running, 4, 5, 6, 7)
    running.step(0)
    assert resume(running, 1).phase == "restoring"
    running.inject(lose(5))
    running.step(0)
    lease = lease_of(running, 1)
    assert (lease.phase, lease.lost_chips) == ("training", (5,))
    assert lease.reason == "chips 5 were lost while weights were read"

    resume(running, 1)
    while lease_of(running, 1).phase != "serving":
        running.step(0)
    up = running.parts.machine.ranks_up.tolist()
    assert up == [True] * 5 + [False, True, True]
    running.parts.machine.hbm.check()


@pytest.mark.long
def test_a_chip_that_does_not_start_again_is_lost_and_the_others_come_back() -> None:
    running = Running()
    running.step(0, 1, 2, 3)
    drain(running, 2, 3)
    fleet = running.parts.fleet
    start = fleet.host.start_chip

    def stillborn(**arguments: Any) -> Any:
        chip = start(**arguments)
        if arguments["chip"] == 3:
            chip.alive = False
        return chip

    fleet.host.start_chip = stillborn  # type: ignore[method-assign]
    fleet.host.wait_loaded = lambda *_: None  # type: ignore[method-assign]
    resume(running, 1)

    lease = lease_of(running, 1)
    assert (lease.phase, lease.lost_chips) == ("serving", (3,))
    assert running.parts.machine.ranks_up.tolist() == [True, True, True, False]
    check_machine(running)
    assert running.step(0, 1).ranks_up == (True, True, True, False)


@pytest.mark.long
def test_a_spare_takes_the_seat_of_a_chip_that_died_and_never_of_one_that_is_lent() -> None:
    running = Running(spares=1)
    running.step(0, 1, 2, 3)
    drain(running, 3)
    assert running.parts.machine.seating.chip_of_position.tolist() == [0, 1, 2, VACANT]
    running.inject(lose(1))
    running.step(0)
    assert running.parts.machine.seating.chip_of_position.tolist() == [0, 4, 2, VACANT]
    check_machine(running)

    resume(running, 1)
    assert running.parts.machine.seating.chip_of_position.tolist() == [0, 4, 2, 3]
    assert running.parts.machine.ranks_up.all()
    check_machine(running)


@pytest.mark.long
def test_two_groups_leave_and_come_back_in_either_order() -> None:
    running = Running(chips=4, spares=0)
    home = running.parts.machine.placement.expert_of_slot
    running.step(0, 1, 2, 3)
    drain(running, 1)
    drain(running, 3)
    check_machine(running)
    assert running.parts.machine.ranks_up.tolist() == [True, False, True, False]
    resume(running, 1)
    check_machine(running)
    resume(running, 2)
    check_machine(running)
    assert (running.parts.machine.placement.expert_of_slot == home).all()
    assert [lease.phase for lease in running.state().leases] == ["serving", "serving"]
    assert running.step(0, 2).snapshot.handovers == 4


def test_a_dry_run_says_what_would_happen_and_changes_nothing() -> None:
    running = Running(computes=False)
    report = drain(running, 3, dry_run=True)

    assert report.lease is None
    assert report.reason.startswith("nothing has been done: ranks 3 leave; 144 expert copies go to")
    assert running.state().leases == ()
    assert running.parts.machine.ranks_up.all()


def test_a_training_state_has_the_hbm_of_a_lent_chip_at_the_timed_model_s_scale() -> None:
    running = Running(computes=False, model="gpt-oss-20b", chips=8)
    chips = running.state().chips
    drain(running, 4, 5, 6, 7)
    lent = running.state().chips[6]
    owners = {owner for stack in lent.stacks for owner in stack.owner_bytes}

    assert owners == {"microcode"} | {
        f"training/{name}"
        for name in ("weights", "gradients", "master", "moments", "activations", "collectives")
    }
    assert 100e9 < lent.hbm_used_bytes < 144 * 2**30
    assert lent.phase == "training"
    resume(running, 1)
    assert running.state().chips[6].stacks == chips[6].stacks


def test_every_nanosecond_of_lent_chips_is_counted_once() -> None:
    quiet, lending = (Running(computes=False, model="gpt-oss-20b", chips=8) for _ in range(2))
    for running in (quiet, lending):
        running.step(0)
    drain(lending, 4, 5, 6, 7)
    spent = lease_of(lending, 1)
    before = lending.engine.telemetry()
    idle_watts = lending.parts.machine.cost_model.idle_chip_watts

    # The job says 2 s at 1,000 W above four idle chips; what idle chips draw is counted already.
    job = note(1, tokens=64, joules=2.0 * (1_000.0 + 4 * idle_watts), emulated_s=2.0)
    for _ in range(2):  # saying it again adds nothing
        assert not isinstance(lending.ask(job), Refusal)
    after = lending.engine.telemetry()
    assert after.chip_joules - before.chip_joules == pytest.approx(2_000.0)
    assert after.training_joules == pytest.approx(2.0 * (1_000.0 + 4 * idle_watts))
    assert after.training_tokens == 64
    assert after.facility_joules - before.facility_joules > 2_000.0
    training = lease_of(lending, 1).training
    assert training is not None
    assert (training.tokens, training.loss) == (64, 5.0)

    # Beyond that, a step takes what it would take, and moving experts what the lease says.
    counted = CountedSteps(lending.engine)
    quiet_s, lending_s = (r.step(0).snapshot for r in (quiet, lending))
    pause_s = lending_s.pause_s
    assert pause_s == pytest.approx(spent.experts_s)
    beyond = spent.joules - 4 * idle_watts * spent.experts_s
    assert beyond > 0
    assert before.chip_joules - beyond <= quiet_s.chip_joules
    last = counted.last_cost
    assert last is not None
    step_joules = float(last.chip_watts.sum()) * last.duration_ns / 1e9
    pause_joules = 8 * idle_watts * pause_s
    assert lending_s.chip_joules - after.chip_joules == pytest.approx(step_joules + pause_joules)


def test_a_job_draws_its_watts_and_joules_on_the_chips_that_work() -> None:
    running = Running(computes=False)
    drain(running, 2, 3)
    running.step(0)
    running.inject(lose(3))
    running.step(0)
    before = running.engine.telemetry()
    idle_watts = running.parts.machine.cost_model.idle_chip_watts

    running.ask(note(1, watts=500.0, joules=1_500.0, emulated_s=3.0))
    running.ask(note(1, watts=600.0, joules=2_100.0, emulated_s=4.0))

    after = running.engine.telemetry()
    assert [chip.watts for chip in running.state().chips[2:]] == [600.0, 0.0]
    assert after.training_joules == pytest.approx(2_100.0)
    beyond = 2_100.0 - 4.0 * idle_watts
    assert after.chip_joules - before.chip_joules == pytest.approx(beyond)


def test_notes_for_chips_that_no_job_has_are_refused() -> None:
    running = Running(computes=False)
    reply = running.ask(note(1))
    assert isinstance(reply, Refusal)
    assert reply.code is RefusalCode.INVALID
    assert reply.message == "lease=1: expected a lease: none so far"
    running.step(0)
    drain(running, 3)
    resume(running, 1)
    reply = running.ask(note(1))
    assert isinstance(reply, Refusal)
    assert reply.message == "lease 1 is serving: no job has its chips"


@pytest.mark.long
def test_restoring_takes_emulated_time_in_which_the_others_serve() -> None:
    running = Running(computes=False, model="gpt-oss-20b", chips=8)
    served = Served(running)
    served.turn()
    drain(running, 4, 5, 6, 7)
    served.turn()
    begun = resume(running, 1)
    assert begun.until_emulated_s is not None
    served.turn()
    first = served.turn()
    assert first.snapshot.ranks_up == 4
    while not running.parts.machine.ranks_up.all():
        assert running.step(0).end_s < begun.until_emulated_s + 0.1
    lease = lease_of(running, 1)
    assert lease.restore_s >= begun.until_emulated_s - begun.since_emulated_s
    # Nobody waited for the reading: only experts that moved held steps up.
    assert running.step(0).snapshot.pause_s == pytest.approx(lease.experts_s)


@pytest.mark.long
def test_maintenance_asks_no_room_for_training_and_the_chips_come_back(
    expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running()

    def nothing_fits(chips: int) -> dict[Any, int]:
        raise HbmExhausted(
            owner="training", wanted_bytes=1, free_bytes=0, table="", hint=f"{chips} are too few"
        )

    monkeypatch.setattr(running.engine._leases, "_training_hbm", nothing_fits)
    assert "are too few" in refused_drain(running, 3)
    served = Served(running)
    served.turn()
    report = drain(running, 3, grace_s=0.0, purpose="maintenance")
    assert "for maintenance" in report.reason
    served.turn()

    lease = lease_of(running, 1)
    assert (lease.phase, lease.purpose) == ("maintenance", "maintenance")
    assert lease.reason == "out of service for maintenance"
    assert running.state().chips[3].phase == "maintenance"
    owners = {use_of(o) for s in running.parts.machine.hbm.usage()[3] for o in s.owner_bytes}
    assert owners <= {HbmUse.MICROCODE}
    check_machine(running)
    refused = running.ask(note(1, tokens=1, joules=1.0, watts=1.0, emulated_s=1.0))
    assert isinstance(refused, Refusal)

    assert resume(running, 1).phase == "restoring"
    assert served.serve_on() == expected
    for _ in range(5):
        running.step(0, 1)
    assert lease_of(running, 1).phase == "serving"
    assert running.step(0, 1, 2, 3).ranks_up == (True,) * 4
    check_machine(running)


@pytest.mark.long
def test_chips_in_maintenance_are_not_called_back_when_the_others_fail() -> None:
    for purpose, called_back in (("training", True), ("maintenance", False)):
        running = Running(chips=2)
        served = Served(running)
        served.turn()
        drain(running, 1, grace_s=0.0, purpose=purpose)
        served.turn()
        report = running.inject(lose(0))

        assert report.survivable is called_back, purpose
