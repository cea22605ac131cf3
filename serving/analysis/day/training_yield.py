"""Training rate and hand-over costs by number of leased groups of one machine."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError

Float64s = NDArray[np.float64]

_COLUMNS: Final = (
    *("tokens_per_s", "chips_at_work", "watts"),
    *("save_s", "start_s", "save_joules", "start_joules"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingYield:
    """Of the machine's one job by leased groups, [groups + 1] each.

    Attributes:
        least_chips: of a machine, to hold the training state.
        recipe: of the job on all groups of a machine, in short.
        peak_flops_per_s: of a chip, dense in BF16.
        tokens_per_s: trained; 0 where too few groups are leased.
        chips_at_work: leased chips that have a job.
        watts: of all leased chips while the job runs, idle ones included.
        save_s: finish a step and write the checkpoint, before any chip is given back.
        start_s: read the checkpoint and begin.
        save_joules, start_joules: of all leased chips in that time.

    Raises ConfigError for unequal lengths, negative values and infinite ones.
    """

    model: str
    least_chips: int
    recipe: str
    peak_flops_per_s: float
    flops_per_token: float
    tokens_per_s: Float64s
    chips_at_work: Float64s
    watts: Float64s
    save_s: Float64s
    start_s: Float64s
    save_joules: Float64s
    start_joules: Float64s

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            values: Float64s = getattr(self, name)
            if values.shape != self.tokens_per_s.shape or not len(values):
                expected = f"one for each number of groups, {self.tokens_per_s.shape}"
                raise ConfigError(name, values.shape, expected)
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ConfigError(name, "a bad value", "finite, from 0 on")

    @property
    def mfu(self) -> float:
        """Model flops of a job on all groups over the BF16 peak of its chips."""
        done = self.flops_per_token * float(self.tokens_per_s[-1])
        return done / (float(self.chips_at_work[-1]) * self.peak_flops_per_s)

    @property
    def job_groups_min(self) -> int:
        """Fewest leased groups that train; more than there are where none do."""
        works = np.flatnonzero(self.tokens_per_s)
        return int(works[0]) if len(works) else len(self.tokens_per_s)

    @property
    def groups(self) -> int:
        """The most that can be leased."""
        return len(self.tokens_per_s) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHandover:
    """One group's hand-over in both directions, without the job's own times.

    `groups_min` serve at all times, for the experts that they hold.
    """

    drain_s: float  # from its last new request until it is empty
    restore_s: float  # from chips without weights until its first request
    restore_joules: float
    moved_requests_per_rate_s: float  # for each request per second that it had
    groups_min: int = 1

    def __post_init__(self) -> None:
        for name in ("drain_s", "restore_s", "restore_joules", "moved_requests_per_rate_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(name, value, "finite, from 0 on")
