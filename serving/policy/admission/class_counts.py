"""What became of the requests of one class, in whole numbers that only grow."""

from dataclasses import dataclass, field

from serving.policy.admission.entry import Outcome
from serving.policy.admission.refusal import RefusalReason


@dataclass(slots=True)
class ClassCounts:
    """Requests that entered, that left by outcome, and that were refused by reason."""

    entered: int = 0
    left: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    refused: dict[RefusalReason, int] = field(
        default_factory=lambda: dict.fromkeys(RefusalReason, 0)
    )

    def refuse(self, reason: RefusalReason) -> None:
        """Count one refusal."""
        self.refused[reason] += 1
