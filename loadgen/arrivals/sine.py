"""A rate that oscillates about a mean."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.records.arrays import Float64s

# Halvings of a bracket that is at most a period: 2**-60 of it is below the precision of the time.
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sine:
    """mean + amplitude x sin(2 pi t / period), for ever.

    Raises ValueError unless 0 <= amplitude <= mean, mean > 0 and period > 0.
    """

    mean_per_s: float
    amplitude_per_s: float
    period_s: float

    def __post_init__(self) -> None:
        if not 0 < self.mean_per_s < np.inf or not 0 < self.period_s < np.inf:
            raise ValueError("a mean and a period above 0")
        if not 0 <= self.amplitude_per_s <= self.mean_per_s:
            raise ValueError("an amplitude from 0 to the mean")

    @property
    def end_s(self) -> float | None:
        """None: it goes on for ever."""
        return None

    @property
    def constant_per_s(self) -> float | None:
        """See `RateShape.constant_per_s`."""
        return None if self.amplitude_per_s else self.mean_per_s

    def cumulative(self, time_s: Float64s) -> Float64s:
        """See `RateShape.cumulative`."""
        swing = self.amplitude_per_s * self.period_s / (2 * np.pi)
        angle = 2 * np.pi / self.period_s * time_s
        return self.mean_per_s * time_s + swing * (1 - np.cos(angle))

    def inverse(self, arrivals: Float64s) -> Float64s:
        """See `RateShape.inverse`."""
        # The swing is within a period and adds nothing over a whole one: find the period by
        # division and the place in it by halving, for the equation has no closed solution.
        periods = np.floor(arrivals / (self.mean_per_s * self.period_s))
        left = arrivals - periods * (self.mean_per_s * self.period_s)
        low = np.zeros_like(left)
        width = self.period_s
        for _ in range(_HALVINGS):
            width /= 2
            low = np.where(self.cumulative(low + width) <= left, low + width, low)
        return periods * self.period_s + low
