"""A predicted wait and its parts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Parts of a wait, in emulated seconds.

    Attributes:
        tokens: of prompts computed before the first token, its own included.
        prompts_s, prompts_factor: their time by the cost model, and its measured correction.
        ends: sequences that must end first; 0 when a seat and KV are free.
        seats_s, seats_factor: the same for those ends; infinite when not enough are sure to come.
        step_s: of the next step at this backlog.
    """

    tokens: int
    prompts_s: float
    prompts_factor: float
    ends: int
    seats_s: float
    seats_factor: float
    step_s: float

    @property
    def seconds(self) -> float:
        """The corrected wait."""
        return max(self.prompts_s * self.prompts_factor, self.seats_s * self.seats_factor)

    @property
    def predicted_s(self) -> float:
        """The wait before correction."""
        return max(self.prompts_s, self.seats_s)

    @property
    def is_for_seat(self) -> bool:
        """Whether seats, not prompts, decide it."""
        return self.seats_s * self.seats_factor > self.prompts_s * self.prompts_factor

    @property
    def factor(self) -> float:
        """Correction of the deciding part."""
        return self.seats_factor if self.is_for_seat else self.prompts_factor
