"""The log of faults: what each stage means, and which requests are counted to which faults."""

import pytest

from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind
from serving.metrics.machine_state import FaultStage
from serving.plugin import fault_log
from serving.plugin.fault_log import FaultLog, Outcome

OUTCOME = Outcome(emulated_ns=1_500, wall_s=0.25, experts_reloaded=9)


def lose(chip: int) -> Fault:
    return Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def log_of(*chips: int) -> FaultLog:
    log = FaultLog()
    for chip in chips:
        log.add(lose(chip), emulated_s=float(chip), survivable=True, reason="a spare stands by")
    return log


def stages(log: FaultLog) -> list[str]:
    return [str(record.stage) for record in log.records]


def test_a_fault_is_pending_until_a_step_meets_it_and_recovers_by_hand() -> None:
    log = FaultLog()
    number = log.add(lose(3), emulated_s=2.5, survivable=True, reason="a spare stands by")
    (record,) = log.records

    assert (number, record.number, record.fault, len(log)) == (1, 1, lose(3), 1)
    assert (record.injected_emulated_s, record.survivable) == (2.5, True)
    assert record.reason == "a spare stands by"
    assert (record.stage, record.recovery, record.healed_emulated_s) == ("pending", None, None)
    assert log.pending == [record]

    log.settle(OUTCOME, survived=True)
    log.count_requests(moved=4, failed=0)
    (record,) = log.records
    assert (record.stage, log.pending) == (FaultStage.RECOVERED, [])
    assert record.recovery is not None
    assert (record.recovery.emulated_ns, record.recovery.wall_s) == (1_500, 0.25)
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
    log.settle(OUTCOME, survived=False)

    assert stages(log) == ["failed"]


def test_a_request_that_ended_with_an_error_makes_its_faults_failures() -> None:
    log = log_of(1, 2)
    log.settle(OUTCOME, survived=True)
    log.count_requests(moved=1, failed=2)

    assert stages(log) == ["failed", "failed"]
    assert [r.recovery.requests_failed for r in log.records if r.recovery] == [2, 2]


def test_requests_are_counted_to_the_faults_settled_last_and_only_once() -> None:
    log = log_of(1)
    log.settle(OUTCOME, survived=True)
    log.count_requests(moved=3, failed=0)
    log.add(lose(2), emulated_s=2.0, survivable=True, reason="copies")
    log.count_requests(moved=5, failed=5)  # of no fault: the second is not settled yet
    log.settle(OUTCOME, survived=True)
    log.count_requests(moved=7, failed=0)
    log.count_requests(moved=9, failed=0)

    assert [r.recovery.requests_moved for r in log.records if r.recovery] == [3, 7]
    assert stages(log) == ["recovered", "recovered"]


def test_settling_nothing_changes_nothing() -> None:
    log = log_of(1)
    log.settle(OUTCOME, survived=True)
    before = log.records
    log.settle(Outcome(emulated_ns=1, wall_s=1.0, experts_reloaded=1), survived=False)

    assert log.records == before


def test_only_what_was_not_healed_before_is_healed() -> None:
    log = log_of(1, 2, 3)
    log.settle(OUTCOME, survived=True)

    assert log.heal([2], emulated_s=4.0) == (2,)
    assert log.heal([1, 2], emulated_s=5.0) == (1,)
    assert [record.healed_emulated_s for record in log.records] == [5.0, 4.0, None]


def test_a_healed_fault_stays_healed_when_its_requests_are_counted_later() -> None:
    log = log_of(1)
    log.settle(OUTCOME, survived=True)
    log.heal([1], emulated_s=4.0)
    log.count_requests(moved=0, failed=1)

    assert stages(log) == ["healed"]
    assert log.records[0].recovery is not None
    assert log.records[0].recovery.requests_failed == 1


def test_records_that_were_handed_out_do_not_change() -> None:
    log = log_of(1)
    before = log.records
    log.settle(OUTCOME, survived=True)

    assert before[0].stage is FaultStage.PENDING


def test_the_log_has_a_bound_that_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_log, "RECORDS_MAX", 2)
    log_of(1).check_room()
    with pytest.raises(ConfigError, match=r"^faults=2: expected at most 2 in one run$"):
        log_of(1, 2).check_room()
