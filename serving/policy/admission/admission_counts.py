"""Admission counts of one gateway: requests inside, and outcomes so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason
from serving.policy.admission.work import WorkClass


@dataclass(slots=True)
class ClassCounts:
    """Requests of a class: entered, left by outcome, refused by reason."""

    entered: int = 0
    left: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    refused: dict[RefusalReason, int] = field(
        default_factory=lambda: dict.fromkeys(RefusalReason, 0)
    )

    def refuse(self, reason: RefusalReason) -> None:
        """Count one refusal."""
        self.refused[reason] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassState:
    """One class of work.

    Attributes:
        in_flight: entered and not left.
        queued, queued_tokens: batch requests without a turn, and their prompt tokens.
        waiting, waiting_tokens: requests at the engine without a first token, and those tokens.
        entered: total; `entered` = `in_flight` + the sum of `left`.
        left, refused: by outcome and reason; both count refusals after a wait.
    """

    in_flight: int
    queued: int
    queued_tokens: int
    waiting: int
    waiting_tokens: int
    entered: int
    left: Mapping[Outcome, int]
    refused: Mapping[RefusalReason, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionCounts:
    """A gateway at one moment.

    Attributes:
        sequences: at the engine, or promised to it.
        expected_wait_s: emulated, of a request of one token; None without a cost model or a seat
            that is sure to come free.
        margin_s: by how much such waits exceeded that lately.
    """

    classes: Mapping[WorkClass, ClassState]
    sequences: int
    expected_wait_s: float | None
    margin_s: float
    is_open: bool

    @property
    def in_flight(self) -> int:
        """Requests of all classes inside."""
        return sum(each.in_flight for each in self.classes.values())
