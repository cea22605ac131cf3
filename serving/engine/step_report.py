"""What the executor tells the scheduler of a step besides its tokens: times, lost ranks, energy.

Each token that a step computed bears as much of its joules as any other. A step is one lockstep of
all ranks, and every expert's chip works for tokens of every rank, so its energy is not taken apart
by rank, prompt and reply, or length of context. What is computed again, after a preemption or on
another rank, is borne again; a prefix hit bears nothing. Chips that do not serve (spares, and those
lent to training) are borne at their idle watts: they are the price of the partition. No token bears
what is drawn between steps, in pauses and in made-up steps, nor what is booked beyond steps: moves,
reads of weights, training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.sim.epochs import EpochMap


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Emulated begin and end of a step in seconds, and what the scheduler does about its ranks.

    `epochs` is how emulated time follows the system's monotonic clock; None where it is virtual
    and does not.

    `lost_ranks` lost their KV cache in this step; tokens that they sampled before are still good.
    `ranks_up` says of each rank whether it takes requests from now on, also of the lost ones, which
    a spare may have replaced; None leaves it as it was, but for the lost ones, which are then down.

    `closed_ranks` are up and take no request from now on; those that they have go on there.
    `renewed_ranks` have read other weights since the last report: what their prefix caches hold is
    of the old ones. `weights` names the weights of each rank; empty where nobody asks. `energy` is
    of a step that computed; None after one without tokens.
    """

    begin_s: float
    end_s: float
    epochs: EpochMap | None
    lost_ranks: tuple[int, ...] = ()
    ranks_up: tuple[bool, ...] | None = None
    closed_ranks: tuple[int, ...] = ()
    renewed_ranks: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    energy: StepEnergy | None = None

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second; 0 where time is virtual."""
        return 0.0 if self.epochs is None else self.epochs.last.dilation

    def at_monotonic_s(self, wall_s: float) -> float:
        """Emulated seconds at a reading of the monotonic clock; the step's begin when virtual."""
        return self.begin_s if self.epochs is None else self.epochs.emulated_s(wall_s)
