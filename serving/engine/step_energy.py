"""What a step drew, and whose requests that was for: each token that it computed bears as much.

A step is one lockstep of all ranks, and every expert's chip works for tokens of every rank; so its
energy is not taken apart by rank. A token of a prompt and one of a reply, of a short context and of
a long one, bear the same in a step that computes both. What is computed again, after a preemption
or on another rank, is borne again; a prefix hit is not computed and bears nothing. Chips that do
not serve (spares, and those lent to training) are borne at their idle watts: they are the price of
the partition. Nobody bears what is drawn between steps, in pauses and in made-up steps, nor what is
booked beyond steps: moves, reads of weights, training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepEnergy:
    """The joules of one step, at the chips (spares and lent ones included) and at the facility.

    `ranks` computed tokens in it, on chips as `chip_of_position` seats them, int64[positions], of
    which each rank has `tp`.

    Raises ValueError for joules below zero.
    """

    chip_joules: float
    facility_joules: float
    ranks: tuple[int, ...]
    chip_of_position: NDArray[np.int64]
    tp: int

    def __post_init__(self) -> None:
        if self.chip_joules < 0 or self.facility_joules < 0:
            raise ValueError(
                f"joules are at least 0: {self.chip_joules} chip, {self.facility_joules} facility"
            )

    def per_token(self, tokens: int) -> tuple[float, float]:
        """Joules of each of the `tokens` that the step computed: at the chips, at the facility."""
        return self.chip_joules / tokens, self.facility_joules / tokens

    def chips_of(self, rank: int) -> tuple[int, ...]:
        """The chips of the machine that made the rank, its first one leading."""
        seats = self.chip_of_position[rank * self.tp : (rank + 1) * self.tp]
        return tuple(seats.tolist())
