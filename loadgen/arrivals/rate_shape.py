"""A rate over time: its cumulative arrivals, and their inverse.

Rates are per second, times seconds since the class began; functions take and return arrays.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from loadgen.arrivals.piecewise_linear import PiecewiseLinear
from loadgen.durations import parse_duration_s
from loadgen.errors import FileError, OptionError
from loadgen.records.arrays import Float64s
from loadgen.records.plain_number import plain_number

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


RATE_FORMS: Final = (
    "a number above 0, sine:MEAN,AMPLITUDE,PERIOD, ramp:FROM-TO/TIME, series:0s=2,60s=10,... "
    "or series:FILE.csv (rows of seconds,rate)"
)
CONCURRENCY_FORMS: Final = (
    "N, ramp:FROM-TO/TIME, series:0s=1,60s=16,... or series:FILE.csv, never below 1"
)


class RateShape(Protocol):
    """A rate that is never negative."""

    @property
    def end_s(self) -> float | None:
        """Where the written shape ends and the last rate goes on; None if it does not end."""
        ...

    @property
    def constant_per_s(self) -> float | None:
        """The rate, if it never changes."""
        ...

    def cumulative(self, time_s: Float64s) -> Float64s:
        """Expected arrivals from 0 to `time_s`: the integral of the rate."""
        ...

    def inverse(self, arrivals: Float64s) -> Float64s:
        """The latest time with at most `arrivals` expected; inf if always.

        Above rate 0 the inverse of `cumulative`; an arrival due exactly as a pause begins is due at
        its end.
        """
        ...


def parse_rate(text: str, *, option: str = "--rate", forms: str = RATE_FORMS) -> RateShape:
    """Parse a rate per second: `4`, `sine:4,2,60s`, `ramp:1-20/60s`, `series:...`, see RATE_FORMS.

    Raises OptionError naming `option` and `forms`, and FileError for an unusable row of a file.
    """
    kind, colon, rest = text.partition(":")
    try:
        if not colon:
            shape: RateShape = _constant(text)
        elif kind == "sine":
            shape = _sine(rest)
        elif kind == "ramp":
            shape = _ramp(rest)
        elif kind == "series":
            shape = _series(rest)
        else:
            raise ValueError("one of its forms")
    except ValueError as error:
        raise OptionError(option, text, f"{forms} ({error})") from None
    return shape


def _constant(text: str) -> PiecewiseLinear:
    rate_per_s = plain_number(text)
    if not rate_per_s > 0:
        raise ValueError(f"{text} is not above 0")
    return PiecewiseLinear(times_s=(0.0,), rates_per_s=(rate_per_s,))


def _sine(text: str) -> Sine:
    parts = text.split(",")
    if len(parts) != 3:
        raise ValueError("three numbers after sine:")
    mean, amplitude = plain_number(parts[0]), plain_number(parts[1])
    period_s = parse_duration_s(parts[2])
    return Sine(mean_per_s=mean, amplitude_per_s=amplitude, period_s=period_s)


def _ramp(text: str) -> PiecewiseLinear:
    rates, slash, time = text.partition("/")
    first, dash, last = rates.partition("-")
    if not slash or not dash:
        raise ValueError("FROM-TO/TIME after ramp:")
    times_s, rates_per_s = (0.0, parse_duration_s(time)), (plain_number(first), plain_number(last))
    return _some(PiecewiseLinear(times_s=times_s, rates_per_s=rates_per_s))


def _series(text: str) -> PiecewiseLinear:
    if "=" not in text:
        return _from_file(Path(text))
    times_s, rates_per_s = [], []
    for point in text.split(","):
        time, _, rate = point.partition("=")
        times_s.append(parse_duration_s(time))
        rates_per_s.append(plain_number(rate))
    return _some(PiecewiseLinear(times_s=tuple(times_s), rates_per_s=tuple(rates_per_s)))


def _from_file(path: Path) -> PiecewiseLinear:
    """Read rows of seconds,rate after an optional header; empty lines are skipped."""
    times_s: list[float] = []
    rates_per_s: list[float] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            for row in rows:
                line = rows.line_num
                headed = line == 1 and not any(map(str.isdigit, "".join(row)))
                if not row or headed:
                    continue
                time_s, rate_per_s = _row(path, line, row)
                if times_s and time_s < times_s[-1]:
                    raise FileError(path, "earlier than the row before", line=line)
                if not times_s and time_s:
                    raise FileError(path, "the first row is not at 0 s", line=line)
                times_s.append(time_s)
                rates_per_s.append(rate_per_s)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(path, f"cannot be read: {error}") from None
    if not any(rates_per_s):
        raise FileError(path, "no row with a rate above 0")
    return PiecewiseLinear(times_s=tuple(times_s), rates_per_s=tuple(rates_per_s))


def _row(path: Path, line: int, row: list[str]) -> tuple[float, float]:
    if len(row) != 2:
        raise FileError(path, f"{len(row)} columns, not seconds,rate", line=line)
    try:
        return plain_number(row[0]), plain_number(row[1])
    except ValueError as error:
        raise FileError(path, str(error), line=line) from None


def _some(shape: PiecewiseLinear) -> PiecewiseLinear:
    if not any(shape.rates_per_s):
        raise ValueError("a rate above 0 somewhere")
    return shape
