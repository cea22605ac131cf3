"""A piecewise linear rate."""

from dataclasses import dataclass

import numpy as np

from loadgen.records.arrays import Float64s


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecewiseLinear:
    """Straight lines between (time, rate) points from time 0; the last rate stays.

    Two points at one time are a jump. Raises ValueError unless times begin at 0 and do not fall,
    and rates are finite and not negative.
    """

    times_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        times, rates = np.asarray(self.times_s), np.asarray(self.rates_per_s)
        if not times.size or times.shape != rates.shape or times[0] != 0:
            raise ValueError("a first point at 0 s")
        if not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise ValueError("times that do not fall")
        if not np.isfinite(rates).all() or (rates < 0).any():
            raise ValueError("rates that are not negative")

    @property
    def end_s(self) -> float | None:
        """The time of the last point; None for a constant rate."""
        return self.times_s[-1] if len(self.times_s) > 1 else None

    @property
    def constant_per_s(self) -> float | None:
        """See `RateShape.constant_per_s`."""
        return self.rates_per_s[0] if len(set(self.rates_per_s)) == 1 else None

    def at(self, time_s: Float64s) -> Float64s:
        """The rate at `time_s`; at a jump, the later one."""
        starts, rates, slopes, _ = self._pieces()
        piece = np.searchsorted(starts, time_s, side="right") - 1
        return rates[piece] + slopes[piece] * (time_s - starts[piece])

    def cumulative(self, time_s: Float64s) -> Float64s:
        """See `RateShape.cumulative`."""
        starts, rates, slopes, areas = self._pieces()
        piece = np.searchsorted(starts, time_s, side="right") - 1
        within = time_s - starts[piece]
        return areas[piece] + within * (rates[piece] + slopes[piece] * within / 2)

    def inverse(self, arrivals: Float64s) -> Float64s:
        """See `RateShape.inverse`."""
        starts, rates, slopes, areas = self._pieces()
        piece = np.searchsorted(areas, arrivals, side="right") - 1
        left = arrivals - areas[piece]
        rate, slope = rates[piece], slopes[piece]
        # Solves rate x + slope x^2 / 2 = left in the form that loses no digits where slope is
        # near 0. Rounding may carry the root of a falling rate just below 0.
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * left, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(left > 0, 2 * left / (rate + root), 0.0)
        never = (piece == starts.size - 1) & (rate == 0)
        return np.where(never, np.inf, starts[piece] + within)

    def _pieces(self) -> tuple[Float64s, Float64s, Float64s, Float64s]:
        """Start, rate there, slope and area before it, of each piece, [points]; the last is
        unending.
        """
        times = np.asarray(self.times_s, dtype=np.float64)
        rates = np.asarray(self.rates_per_s, dtype=np.float64)
        widths = np.diff(times)
        rises = np.diff(rates)
        slopes = np.divide(rises, widths, out=np.zeros_like(rises), where=widths > 0)
        areas = np.append(0.0, np.cumsum(widths * (rates[:-1] + rates[1:]) / 2))
        return times, rates, np.append(slopes, 0.0), areas
