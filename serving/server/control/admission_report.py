"""Admission control's state as the control service shows it."""

from serving.policy.admission.entry import Outcome
from serving.server.control.engine_admission import EngineDoor
from serving.wire.admission_report import AdmissionReport, ClassReport


def admission_report(door: EngineDoor) -> AdmissionReport:
    """How it stands now."""
    state, closed = door.state(), door.closed
    return AdmissionReport(
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
