"""What the executor tells the scheduler of a step besides its tokens: times, lost ranks."""

from dataclasses import dataclass

from emulator.sim.epochs import EpochMap
from serving.engine.step_energy import StepEnergy


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
