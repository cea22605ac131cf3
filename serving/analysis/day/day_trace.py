"""Request rates over days, from hourly counts or a day's steps; independent of the machines.

Linear between the hours' middles (assumed), so that no hour begins with a jump; recorded steps are
kept.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from loadgen.workloads.traffic import Traffic

Float64s = NDArray[np.float64]

HOUR_S: Final = 3_600.0
DAY_S: Final = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DayTrace:
    """A request rate, linear between knots and constant before and after them.

    Attributes:
        source: with assumptions.
        begins: the time of second 0, with its zone.
        knots_s: ascending; two equal ones make a step. [knots]
        rates_per_s: requests per second at the knots, or, until it is `scaled`, what stands for
            them. [knots]
        traffic: the requests, where they were recorded one by one.
        is_schedule: an operator's capacity schedule, a proxy for demand.

    Raises ConfigError for knots out of order, and rates that are negative or all 0.
    """

    source: str
    begins: datetime
    length_s: float
    knots_s: Float64s
    rates_per_s: Float64s
    traffic: Traffic | None = None
    is_schedule: bool = False

    def __post_init__(self) -> None:
        knots, rates = self.knots_s, self.rates_per_s
        if knots.ndim != 1 or knots.shape != rates.shape or not len(knots):
            raise ConfigError("trace", self.source, "a rate at each knot")
        if (np.diff(knots) < 0).any() or not 0 < self.length_s < np.inf:
            raise ConfigError("trace", self.source, "times that ascend")
        if not (np.isfinite(rates).all() and (rates >= 0).all() and rates.any()):
            raise ConfigError("trace", self.source, "some requests")

    @classmethod
    def hourly(cls, requests: Float64s, *, source: str, begins: datetime) -> Self:
        """From requests per hour, [hours]."""
        hours = len(requests)
        return cls(
            source=source,
            begins=begins,
            length_s=hours * HOUR_S,
            knots_s=np.arange(hours, dtype=np.float64) * HOUR_S + HOUR_S / 2,
            rates_per_s=requests / HOUR_S,
        )

    @classmethod
    def stepwise(
        cls, steps: tuple[tuple[float, float, float], ...], *, source: str, begins: datetime
    ) -> Self:
        """From (begin hour, end hour, requests per second), contiguous from hour 0."""
        begin_h, end_h, rates = np.array(steps, dtype=np.float64).T  # [steps] each
        if begin_h[0] != 0 or (begin_h[1:] != end_h[:-1]).any() or (end_h <= begin_h).any():
            raise ConfigError("trace", source, "steps that follow each other from hour 0")
        return cls(
            source=source,
            begins=begins,
            length_s=float(end_h[-1]) * HOUR_S,
            knots_s=np.stack([begin_h, end_h], axis=1).ravel() * HOUR_S,
            rates_per_s=np.repeat(rates, 2),
        )

    @property
    def peak_per_s(self) -> float:
        """The highest rate."""
        return float(self.rates_per_s.max())

    @property
    def zone(self) -> str:
        """The name of its time zone."""
        return str(self.begins.tzinfo)

    @property
    def days(self) -> int:
        """Whole days of the recording."""
        return int(self.length_s // DAY_S)

    @property
    def is_of_whole_days(self) -> bool:
        """Whether its end and its begin are the same time of the day, so that it may repeat."""
        return self.length_s % DAY_S == 0

    def rates_at(self, times_s: Float64s, *, repeats: bool = False) -> Float64s:
        """Requests per second at each time, [times]; of a trace that `repeats` its last knot leads
        to its first one, so that no jump is made where the two meet.
        """
        knots_s, rates_per_s = self.knots_s, self.rates_per_s
        if repeats:
            ends_s = (knots_s[-1] - self.length_s, knots_s[0] + self.length_s)
            knots_s = np.concatenate([ends_s[:1], knots_s, ends_s[1:]])
            rates_per_s = np.concatenate([rates_per_s[-1:], rates_per_s, rates_per_s[:1]])
        rates: Float64s = np.interp(times_s, knots_s, rates_per_s)
        return rates

    def scaled(self, peak_per_s: float) -> Self:
        """The trace with its rates scaled so that the highest is `peak_per_s`."""
        if not 0 < peak_per_s < np.inf:
            raise ConfigError("peak", peak_per_s, "above 0 requests/s")
        return replace(self, rates_per_s=self.rates_per_s * (peak_per_s / self.peak_per_s))

    def busiest_day(self) -> int:
        """The first day, counted from 0, that has the highest rate."""
        if self.days < 2:
            return 0
        highest = float(self.knots_s[self.rates_per_s.argmax()])
        return min(int(highest // DAY_S), self.days - 1)
