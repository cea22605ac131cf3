"""A replica's latencies and power at any rate, linear between the simulated ones.

A weighted isotonic fit removes sampling noise: shares within the target never rise with the rate.
Between two rates that keep the target the late requests grow by equal ratios, since queues bend
upwards; straight lines made them up to 0.4 points too many there. Where the target is missed, a
rate's queue grows without end somewhere between, nobody knows where, and lines are straight.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.analysis.day.replica_run import RatePoint

Float64s = NDArray[np.float64]

_LEAST_S: Final = 1e-9
_SHARES: Final = ("ttft_share", "tpot_share", "both_share")
_LINES: Final = 8
"""Straight ones between two rates, where figures bend."""


@dataclass(frozen=True, kw_only=True)
class ReplicaCurve:
    """Points by ascending rate, all below `saturated_per_s`.

    `required_share` of the requests must keep both limits at `capacity_per_s`. Raises ConfigError
    for points out of order, or none.
    """

    points: tuple[RatePoint, ...]
    saturated_per_s: float
    required_share: float
    idle_watts: float

    def __post_init__(self) -> None:
        rates = [point.rate_per_s for point in self.points]
        if not rates or rates != sorted(set(rates)) or rates[0] <= 0:
            raise ConfigError("points", rates, "rates that ascend from 0")
        if self.saturated_per_s < rates[-1]:
            expected = f"at least the points' {rates[-1]:g} requests/s"
            raise ConfigError("saturated_per_s", self.saturated_per_s, expected)

    @cached_property
    def _rates(self) -> Float64s:
        return np.array([0.0, *(point.rate_per_s for point in self.points)])

    @cached_property
    def _shares(self) -> dict[str, Float64s]:
        """Each share at each rate, isotonic; at rate 0 that of the lowest point."""
        weights = np.array([point.judged for point in self.points], dtype=np.float64)
        fitted = {}
        for name in _SHARES:
            raw = np.array([getattr(point, name) for point in self.points])
            fit = falling_fit(raw, weights)
            fitted[name] = np.concatenate([fit[:1], fit])
        return fitted

    @cached_property
    def capacity_per_s(self) -> float:
        """The highest rate at which the target is kept; 0 without one."""
        shares, rates = self._shares["both_share"], self._rates
        kept = shares >= self.required_share
        if kept.all():
            return float(rates[-1])
        if not kept[0]:
            return 0.0
        first = int(kept.argmin())  # of those that miss it
        above, below = shares[first - 1], shares[first]
        part = (above - self.required_share) / (above - below)
        return float(rates[first - 1] + part * (rates[first] - rates[first - 1]))

    @property
    def least_capacity_per_s(self) -> float:
        """The same; it does not depend on how many replicas serve."""
        return self.capacity_per_s

    def saturated_at(self, serving: Float64s | float) -> Float64s | float:
        """`saturated_per_s`, however many replicas serve."""
        del serving
        return self.saturated_per_s

    def share(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """`ttft_share`, `tpot_share` or `both_share` at each rate, however many replicas serve.

        From the last point it falls linearly to 0 at saturation, where the queue has no end; TPOT's
        stays constant.
        """
        del serving
        found: Float64s = np.interp(rates_per_s, self._line_rates, self._line_shares[name])
        return found

    @cached_property
    def _line_rates(self) -> Float64s:
        """Where the lines of shares meet; the last one just above saturation."""
        low, high = self._rates[:-1, None], self._rates[1:, None]
        between = low + np.arange(_LINES) / _LINES * (high - low)  # [points, lines]
        ends = (self._rates[-1], np.nextafter(self.saturated_per_s, np.inf))
        return np.concatenate([between.ravel(), ends])

    @cached_property
    def _line_shares(self) -> dict[str, Float64s]:
        """Each share there."""
        return {name: self._bent(name) for name in _SHARES}

    def _bent(self, name: str) -> Float64s:
        shares, rates = self._shares[name], self._line_rates[:-1]
        straight = np.interp(rates, self._rates, shares)
        one = 1.0 / max(point.judged for point in self.points)  # of none late less is not known
        logs = np.interp(rates, self._rates, np.log(1.0 - shares + one))
        bends = np.append(np.repeat(shares[1:] >= self.required_share, _LINES), False)
        bends[::_LINES] = False  # what was simulated stays to the bit
        found = np.where(bends, 1.0 + one - np.exp(logs), straight)
        return np.append(found, found[-1] if name == "tpot_share" else 0.0)

    @cached_property
    def _watts(self) -> Float64s:
        return np.array([self.idle_watts, *(point.chip_watts for point in self.points)])

    def chip_watts(
        self, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """Of the whole replica at each rate, however many serve."""
        del serving
        watts: Float64s = np.interp(rates_per_s, self._rates, self._watts)
        return watts

    def least_chip_watts(
        self, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """Of the whole replica at each rate or a higher one, whichever is the lowest."""
        del serving
        least = np.minimum.accumulate(self._watts[::-1])[::-1]
        watts: Float64s = np.interp(rates_per_s, self._rates, least)
        return watts

    def seconds(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """A latency by its name at each rate, constant below the lowest point."""
        del serving
        rates = self._rates[1:]
        times = np.array([getattr(point, name) for point in self.points])
        found: Float64s = np.interp(rates_per_s, rates, times)
        return found

    def tail(
        self, name: str, rates_per_s: Float64s, serving: Float64s | float | None = None
    ) -> Float64s:
        """`ttft_tail_s` or `tpot_tail_s` at each rate, [rates] -> [TAIL, rates].

        Between rates they grow by equal ratios: tails bend upwards, above which straight lines lie.
        """
        del serving
        rates = self._rates[1:]
        times = np.array([getattr(point, name) for point in self.points]).T  # [TAIL, points]
        logs = np.log(np.maximum(times, _LEAST_S))
        return np.exp([np.interp(rates_per_s, rates, each) for each in logs])


def falling_fit(values: Float64s, weights: Float64s) -> Float64s:
    """The weighted least-squares fit that never rises, [values], by pooling adjacent violators.

    As `scipy.optimize.isotonic_regression` computes it, to the bit, whose import takes longer than
    the walks of some policies.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, values; from the end, means rise
    pairs = list(zip(values[::-1].tolist(), weights[::-1].tolist(), strict=True))
    number = 0
    while number < len(pairs):
        mean, weight = pairs[number]
        number, count = number + 1, 1
        if blocks and blocks[-1][0] >= mean:
            last_mean, last_weight, last_count = blocks.pop()
            total = last_weight * last_mean + weight * mean
            weight, count = weight + last_weight, count + last_count
            mean = total / weight
            while number < len(pairs) and mean >= pairs[number][0]:
                total += pairs[number][1] * pairs[number][0]
                weight, count = weight + pairs[number][1], count + 1
                mean, number = total / weight, number + 1
            while blocks and blocks[-1][0] >= mean:
                last_mean, last_weight, last_count = blocks.pop()
                total += last_weight * last_mean
                weight, count = weight + last_weight, count + last_count
                mean = total / weight
        blocks.append((mean, weight, count))
    means, _, counts = zip(*blocks, strict=True)
    fit: Float64s = np.repeat(means, counts)[::-1]
    return fit
