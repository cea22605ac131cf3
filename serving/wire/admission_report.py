"""Admission control as the control service shows it; named after its messages."""

from serving.policy.admission.work import WorkClass
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


class AdmissionReport(Plain, frozen=True, kw_only=True):
    """Admission of both protocols; `closed`: message for refused clients, empty while open."""

    is_open: bool
    closed: str
    in_flight: Count
    sequences: Count
    expected_wait_s: float | None
    margin_s: float
    classes: tuple[ClassReport, ...]
