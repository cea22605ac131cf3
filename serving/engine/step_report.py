"""The executor's report of a step to the scheduler, besides tokens: times, lost ranks, energy.

Each token of a step bears an equal share of its joules: all ranks step together, and every expert's
chip works for all, so no split by rank, phase or context is meaningful. Recomputed tokens (after a
preemption, on another rank) bear a share again, prefix hits none. Spares and leased chips are borne
at idle watts: the price of the partition. No token bears energy between steps, of pauses and
warm-up steps, or of moves, weight reads and training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.sim.epochs import EpochMap
from serving.policy.rank_roles import RankRole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepEnergy:
    """Joules of one step, at the chips (spares and leased ones too) and at the facility.

    `ranks` computed tokens, each on `tp` chips of `chip_of_position`, int64[positions]. Raises
    ValueError for joules below zero.
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
        """Joules of each of the step's `tokens`: at the chips, at the facility."""
        return self.chip_joules / tokens, self.facility_joules / tokens

    def chips_of(self, rank: int) -> tuple[int, ...]:
        """The rank's chips, its first one leading."""
        seats = self.chip_of_position[rank * self.tp : (rank + 1) * self.tp]
        return tuple(seats.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Emulated begin and end of a step in seconds, and changes of ranks.

    `epochs` map emulated time to the system's monotonic clock; None in virtual time. `lost_ranks`
    lost their KV cache in this step; tokens sampled before are valid. `ranks_up` flags ranks that
    take requests from now on, also lost ones that a spare replaced; if None, only the lost ones go
    down. `closed_ranks` keep their requests and take no new ones. `renewed_ranks` read other
    weights since the last report: their prefix caches are stale. `weights` names each rank's
    weights, or is empty. `kv_received` are requests whose KV has come to their rank, `kv_failed`
    those whose never will. `role_changes`: ranks with the roles that they have from now on.
    `energy` is None after a step without tokens. `silent_ranks`, of those lost, computed nothing in
    the step.
    """

    begin_s: float
    end_s: float
    epochs: EpochMap | None
    lost_ranks: tuple[int, ...] = ()
    ranks_up: tuple[bool, ...] | None = None
    closed_ranks: tuple[int, ...] = ()
    renewed_ranks: tuple[int, ...] = ()
    weights: tuple[str, ...] = ()
    kv_received: tuple[str, ...] = ()
    kv_failed: tuple[str, ...] = ()
    role_changes: tuple[tuple[int, RankRole], ...] = ()
    energy: StepEnergy | None = None
    silent_ranks: tuple[int, ...] = ()

    def ranks_up_after(self, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The ranks that are up from now on, of those that were `before`: both [ranks]."""
        up = before.copy()
        up[list(self.lost_ranks)] = False
        if self.ranks_up is not None:
            assert len(self.ranks_up) == len(up)
            up[:] = self.ranks_up
        return up

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second; 0 in virtual time."""
        return 0.0 if self.epochs is None else self.epochs.last.dilation

    def at_monotonic_s(self, wall_s: float) -> float:
        """Emulated seconds at a reading of the monotonic clock; the step's begin when virtual."""
        return self.begin_s if self.epochs is None else self.epochs.emulated_s(wall_s)
