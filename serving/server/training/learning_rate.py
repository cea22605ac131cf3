"""Learning-rate schedules: pure functions of the step, so that jobs resume exactly."""

import math
from dataclasses import dataclass
from enum import StrEnum

from emulator.errors import ConfigError


class Decay(StrEnum):
    """The schedule after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"
    STABLE = "wsd"  # warm-up, stable, decay: constant, and linear to the end over its last part


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """Linear warm-up over `warmup_steps` to `peak`, then `decay` until step `steps`.

    `final_share` of the peak remains at the end; a STABLE schedule falls linearly in its last
    `decay_share` of all steps. Raises ConfigError for a share outside 0 to 1, a peak not above 0,
    too long a warm-up.
    """

    peak: float
    steps: int
    warmup_steps: int = 0
    decay: Decay = Decay.COSINE
    final_share: float = 0.1
    decay_share: float = 0.2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak) and self.peak > 0):
            raise ConfigError("learning_rate", self.peak, "a number above 0")
        if not 0 <= self.warmup_steps <= self.steps:
            expected = f"0 to the job's {self.steps} steps"
            raise ConfigError("warmup", self.warmup_steps, expected)
        for field in ("final_share", "decay_share"):
            if not 0 <= getattr(self, field) <= 1:
                value = getattr(self, field)
                raise ConfigError(field, value, "a share from 0 to 1")

    def at(self, step: int) -> float:
        """The rate of step `step`, from 0; after the last step, the last rate."""
        if step < self.warmup_steps:
            return self.peak * ((step + 1) / self.warmup_steps)
        floor = self.peak * self.final_share
        if self.decay is Decay.CONSTANT:
            return self.peak
        if self.decay is Decay.COSINE:
            done = _share(step, self.warmup_steps, self.steps)
            falling = floor + (self.peak - floor) * (1 + math.cos(math.pi * done)) / 2
            return min(falling, self.peak)  # a rounding may lift the first one above it
        first = max(self.warmup_steps, round(self.steps * (1 - self.decay_share)))
        return self.peak - (self.peak - floor) * _share(step, first, self.steps)


def _share(step: int, first: int, end: int) -> float:
    """Progress from step `first` to the last before `end`: 0 to 1."""
    last = end - 1
    if last <= first:
        return 0.0 if step <= first else 1.0
    return min(max((step - first) / (last - first), 0.0), 1.0)
