"""The door as the control service shows it."""

from serving.policy.admission.entry import Outcome
from serving.policy.admission.work import WorkClass
from serving.server.control.engine_admission import EngineDoor
from serving.wire.machine_state import Count, Plain


class ClassReport(Plain, frozen=True, kw_only=True):
    """One class of work; see `serving.policy.admission.admission_counts.ClassState`.

    `entered` = `in_flight` + `finished` + `aborted` + `failed` + `refused_later`.
    """

    work_class: WorkClass
    in_flight: Count
    queued: Count
    queued_tokens: Count
    waiting: Count
    waiting_tokens: Count
    entered: Count
    finished: Count
    aborted: Count
    failed: Count
    refused_later: Count
    refused: dict[str, Count]


class DoorReport(Plain, frozen=True, kw_only=True):
    """The door of both protocols; `closed` is what clients are told, empty while it is open."""

    is_open: bool
    closed: str
    in_flight: Count
    sequences: Count
    expected_wait_s: float | None
    margin_s: float
    classes: tuple[ClassReport, ...]


def door_report(door: EngineDoor) -> DoorReport:
    """How it stands now."""
    state, closed = door.state(), door.closed
    return DoorReport(
        is_open=closed is None,
        closed="" if closed is None else str(closed),
        in_flight=state.in_flight,
        sequences=state.sequences,
        expected_wait_s=state.expected_wait_s,
        margin_s=state.margin_s,
        classes=tuple(
            ClassReport(
                work_class=work_class,
                in_flight=each.in_flight,
                queued=each.queued,
                queued_tokens=each.queued_tokens,
                waiting=each.waiting,
                waiting_tokens=each.waiting_tokens,
                entered=each.entered,
                finished=each.left.get(Outcome.FINISHED, 0),
                aborted=each.left.get(Outcome.ABORTED, 0),
                failed=each.left.get(Outcome.FAILED, 0),
                refused_later=each.left.get(Outcome.REFUSED, 0),
                refused={str(reason): count for reason, count in each.refused.items() if count},
            )
            for work_class, each in state.classes.items()
        ),
    )
