"""The log of faults: what each stage means, and which requests are counted to which faults."""

from itertools import count

import pytest

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from serving.engine import fault_log
from serving.engine.fault_log import FaultLog, Moved
from serving.wire.machine_state import REQUESTS_NAMED_MAX, FaultStage

OUTCOME: dict[str, int] = {"duration_ns": 1_500, "experts_reloaded": 9}


def lose(chip: int) -> Fault:
    return Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def new_log(*, ranks_up: int = 4) -> FaultLog:
    """Of a machine with so many ranks, whose wall clock ticks a quarter of a second a reading."""
    ticks = count()
    return FaultLog(lambda: ranks_up, wall_s=lambda: next(ticks) / 4)


def log_of(*chips: int) -> FaultLog:
    log = new_log()
    for chip in chips:
        log.add(lose(chip), emulated_s=float(chip), survivable=True, reason="a spare stands by")
    return log


def recovered(log: FaultLog, *, survived: bool = True) -> None:
    """All pending faults are met, and the machine goes on a moment later."""
    log.settle(**OUTCOME, emulated_s=3.0, survived=survived)
    log.finish(emulated_s=3.5)


def moved(requests: int, *, failed: bool = False) -> list[Moved]:
    return [Moved(rank=0, name=f"r{number}", failed=failed) for number in range(requests)]


def stages(log: FaultLog) -> list[str]:
    return [str(record.stage) for record in log.records]


def test_a_fault_is_pending_until_a_step_meets_it_and_recovers_by_hand() -> None:
    log = new_log()
    number = log.add(lose(3), emulated_s=2.5, survivable=True, reason="a spare stands by")
    (record,) = log.records

    assert (number, record.number, record.fault, len(log)) == (1, 1, lose(3), 1)
    assert (record.injected_emulated_s, record.survivable) == (2.5, True)
    assert record.reason == "a spare stands by"
    assert (record.stage, record.recovery, record.healed_emulated_s) == ("pending", None, None)
    assert log.pending == [record]

    log.settle(**OUTCOME, emulated_s=3.0, survived=True)
    (record,) = log.records
    assert (record.stage, log.pending) == (FaultStage.RECOVERING, [])
    assert log.recovering == [record]

    log.finish(emulated_s=33.0)
    log.credit(1, moved(4), emulated_s=33.0)
    (record,) = log.records
    assert (record.stage, log.recovering) == (FaultStage.RECOVERED, [])
    assert record.recovery is not None
    assert (record.recovery.emulated_ns, record.recovery.wall_s) == (1_500, 0.5)
    assert record.recovery.moved == ("r0", "r1", "r2", "r3")
    assert (record.recovery.requests_moved, record.recovery.requests_failed) == (4, 0)
    assert record.recovery.experts_reloaded == 9

    assert log.heal([1], emulated_s=7.0) == (1,)
    assert log.records[0].stage is FaultStage.HEALED
    assert log.records[0].healed_emulated_s == 7.0


def test_faults_are_numbered_from_one_in_their_order() -> None:
    log = log_of(5, 3, 4)

    assert [(record.number, record.fault.chip) for record in log.records] == [
        (1, 5),
        (2, 3),
        (3, 4),
    ]


def test_a_machine_that_cannot_go_on_has_failed() -> None:
    log = log_of(1)
    recovered(log, survived=False)

    assert stages(log) == ["failed"]


def test_a_request_that_ended_with_an_error_makes_its_fault_a_failure_and_no_other() -> None:
    log = log_of(1, 2)
    recovered(log)
    log.credit(2, [*moved(1), *moved(2, failed=True)], emulated_s=4.0)

    assert stages(log) == ["recovered", "failed"]
    assert [r.recovery.requests_failed for r in log.records if r.recovery] == [0, 2]
    assert [r.recovery.requests_moved for r in log.records if r.recovery] == [0, 1]


def test_requests_that_end_before_the_machine_goes_on_make_the_fault_a_failure() -> None:
    log = log_of(1)
    log.settle(**OUTCOME, emulated_s=3.0, survived=True)
    log.credit(1, moved(1, failed=True), emulated_s=3.2)
    assert stages(log) == ["recovering"]

    log.finish(emulated_s=3.5)
    assert stages(log) == ["failed"]


def test_of_many_requests_the_first_are_named_and_all_are_counted() -> None:
    log = log_of(1)
    recovered(log)
    log.credit(1, moved(REQUESTS_NAMED_MAX), emulated_s=4.0)
    log.credit(1, moved(3), emulated_s=5.0)

    recovery = log.records[0].recovery
    assert recovery is not None
    assert recovery.requests_moved == REQUESTS_NAMED_MAX + 3
    assert len(recovery.moved) == REQUESTS_NAMED_MAX


def test_a_slow_chip_is_not_recovered_while_it_is_slow() -> None:
    log = new_log()
    slow = Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=3.0)
    log.add(slow, emulated_s=1.0, survivable=True, reason="waited for")
    recovered(log)
    assert stages(log) == ["degraded"]

    log.heal([1], emulated_s=9.0)
    assert stages(log) == ["healed"]


def test_each_stage_is_an_event_with_its_time_and_the_ranks_that_served_then() -> None:
    ranks = [4]
    log = FaultLog(lambda: ranks[0])
    log.add(lose(3), emulated_s=1.0, survivable=True, reason="a spare stands by")
    ranks[0] = 3
    log.settle(**OUTCOME, emulated_s=1.5, survived=True)
    log.finish(emulated_s=31.0)
    ranks[0] = 4
    log.heal([1], emulated_s=40.0)

    seen = [(e.number, str(e.fault.stage), e.emulated_s, e.ranks_up) for e in log.events_after(0)]
    assert seen == [
        (1, "pending", 1.0, 4),
        (2, "recovering", 1.5, 3),
        (3, "recovered", 31.0, 3),
        (4, "healed", 40.0, 4),
    ]


def test_settling_nothing_changes_nothing() -> None:
    log = log_of(1)
    recovered(log)
    before = log.records
    log.settle(emulated_s=5.0, duration_ns=1, experts_reloaded=1, survived=False)
    log.finish(emulated_s=6.0)

    assert log.records == before


def test_only_what_was_not_healed_before_is_healed() -> None:
    log = log_of(1, 2, 3)
    recovered(log)

    assert log.heal([2], emulated_s=4.0) == (2,)
    assert log.heal([1, 2], emulated_s=5.0) == (1,)
    assert [record.healed_emulated_s for record in log.records] == [5.0, 4.0, None]


def test_a_healed_fault_stays_healed_when_its_requests_are_counted_later() -> None:
    log = log_of(1)
    recovered(log)
    log.heal([1], emulated_s=4.0)
    log.credit(1, moved(1, failed=True), emulated_s=5.0)

    assert stages(log) == ["healed"]
    assert log.records[0].recovery is not None
    assert log.records[0].recovery.requests_failed == 1


def test_records_that_were_handed_out_do_not_change() -> None:
    log = log_of(1)
    before = log.records
    recovered(log)

    assert before[0].stage is FaultStage.PENDING


def test_the_log_has_a_bound_that_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_log, "RECORDS_MAX", 2)
    log_of(1).check_room()
    with pytest.raises(ConfigError, match=r"^faults=2: expected at most 2 in one run$"):
        log_of(1, 2).check_room()
