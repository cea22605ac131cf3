"""A predicted wait and its parts; frozen."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Parts of a wait, in emulated seconds.

    Attributes:
        tokens: of prompts that are computed before the first token, its own included.
        prompts_s, prompts_factor: what they take by the cost model, and by how much longer such
            waits were lately.
        ends: sequences that must end first; 0 when there is a seat and KV.
        seats_s, seats_factor: the same for those ends; infinite when not enough are sure to come.
        step_s: of a step, in which what goes before it gets less.
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
        """How long it is."""
        return max(self.prompts_s * self.prompts_factor, self.seats_s * self.seats_factor)

    @property
    def predicted_s(self) -> float:
        """The same before it is corrected."""
        return max(self.prompts_s, self.seats_s)

    @property
    def is_for_seat(self) -> bool:
        """Whether the seat is what it waits for longest."""
        return self.seats_s * self.seats_factor > self.prompts_s * self.prompts_factor

    @property
    def factor(self) -> float:
        """By how much the longer one is corrected."""
        return self.seats_factor if self.is_for_seat else self.prompts_factor
