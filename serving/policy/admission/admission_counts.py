"""Counts of one gateway at a moment: what is inside, and the outcomes so far. Frozen."""

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
        in_flight: requests that have entered and not left; of them
        queued, queued_tokens: batch work that waits for its turn, and its prompts' tokens;
        waiting, waiting_tokens: are the engine's and wait for a first token, and those tokens.
        entered: in all; `entered` = `in_flight` + the sum of `left`.
        left: by outcome; `REFUSED` are those that were refused after they had waited.
        refused: by reason, on entering and after waiting.
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
        classes: see `ClassState`.
        sequences: that the engine has, or has been promised.
        expected_wait_s: emulated, of a request of one token, by the cost model and as it was known
            at the last look at what runs; None: no cost model is known, or no seat is sure to come
            free.
        margin_s: by how much such waits were longer lately than that.
        is_open: whether new work may enter.
    """

    classes: Mapping[WorkClass, ClassState]
    sequences: int
    expected_wait_s: float | None
    margin_s: float
    is_open: bool

    @property
    def in_flight(self) -> int:
        """Requests of all classes that have entered and not left."""
        return sum(each.in_flight for each in self.classes.values())
