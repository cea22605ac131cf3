"""A replica's latencies and power at any rate, between the simulated ones.

Powers and mean latencies go in straight lines, percentiles of latencies by equal ratios, since
queues bend upwards. A share in time follows from the percentiles: where one of them reaches its
limit, that share keeps it; between those rates it falls in straight lines. A weighted isotonic fit
removes sampling noise first: shares never rise with the rate.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from serving.analysis.day.replica_run import TAIL, RatePoint

Float64s = NDArray[np.float64]

_LEAST_S: Final = 1e-9
_SHARES: Final = ("ttft_share", "tpot_share", "both_share")


@dataclass(frozen=True, kw_only=True)
class ReplicaCurve:
    """Points by ascending rate, all below `saturated_per_s`.

    `required_share` of the requests must keep both limits at `capacity_per_s`, which is at most
    `lasting_per_s`: a rate at which they do for minutes. Without a limit of TTFT or TPOT (None) its
    share goes in straight lines. Raises ConfigError for points out of order, or none.
    """

    points: tuple[RatePoint, ...]
    saturated_per_s: float
    required_share: float
    lasting_per_s: float
    idle_watts: float
    ttft_limit_s: float | None
    tpot_limit_s: float | None

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
        """The highest rate at which the target is kept, also for minutes; 0 without one."""
        return min(self.lasting_per_s, self._kept_per_s)

    @property
    def _kept_per_s(self) -> float:
        rates, shares = self._line_rates[:-1], self._line_shares["both_share"][:-1]
        kept = shares >= self.required_share
        if kept.all():
            return float(rates[-1])
        if not kept[0]:
            return 0.0
        first = int(kept.argmin())  # of those that miss it
        above, below = shares[first - 1], shares[first]
        part = (above - self.required_share) / (above - below)
        return float(rates[first - 1] + part * (rates[first] - rates[first - 1]))

    @cached_property
    def patience_s(self) -> float:
        """How long a request may wait before it is served and keep TTFT's limit, if it then takes
        as long as the mean one at the capacity; 0 without a limit (assumed).
        """
        if self.ttft_limit_s is None:
            return 0.0
        shares = np.array([0.0, *TAIL, 100.0]) / 100.0
        own_s = self.tail("ttft_tail_s", np.array([self.capacity_per_s]))[:, 0]
        times_s = np.array([0.0, *own_s, own_s[-1]])
        mean_s = float((np.diff(shares) * (times_s[:-1] + times_s[1:])).sum()) / 2.0
        return max(0.0, self.ttft_limit_s - mean_s)

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
    def _crossings(self) -> dict[str, tuple[Float64s, Float64s]]:
        """By share, the rates where percentiles reach its limit, and those percentiles as shares,
        by ascending rate.
        """
        limits = {"ttft": self.ttft_limit_s, "tpot": self.tpot_limit_s}
        return {
            f"{name}_share": self._crossed(f"{name}_tail_s", limit)
            for name, limit in limits.items()
        }

    def _crossed(self, name: str, limit_s: float | None) -> tuple[Float64s, Float64s]:
        if limit_s is None:
            return np.zeros(0), np.zeros(0)
        logs = self._log_tails(name) - np.log(limit_s)
        low, high = logs[:, :-1], logs[:, 1:]
        row, first = ((low < 0.0) & (high >= 0.0)).nonzero()
        part = low[row, first] / (low[row, first] - high[row, first])
        begin, end = self._rates[1:][first], self._rates[2:][first]
        rates = begin + part * (end - begin)
        shares = np.array(TAIL)[row] / 100.0
        order = np.lexsort((-shares, rates))
        return rates[order], shares[order]

    @cached_property
    def _line_rates(self) -> Float64s:
        """Where the lines of shares meet; the last one just above saturation."""
        crossed = [rates for rates, _ in self._crossings.values()]
        ends = np.nextafter(self.saturated_per_s, np.inf)
        return np.append(np.sort(np.concatenate([self._rates, *crossed])), ends)

    @cached_property
    def _line_shares(self) -> dict[str, Float64s]:
        """Each share there; the product of TTFT's and TPOT's is about what keeps both."""
        rates = self._line_rates[:-1]
        each = {name: self._lines(name, rates) for name in self._crossings}
        ttft, tpot, both = (self._shares[name] for name in _SHARES)
        product = ttft * tpot
        together = np.divide(both, product, out=np.ones(len(both)), where=product > 0)
        kept = each["ttft_share"] * each["tpot_share"] * np.interp(rates, self._rates, together)
        found = {**each, "both_share": self._between(kept, both, rates)}
        return {
            name: np.append(shares, shares[-1] if name == "tpot_share" else 0.0)
            for name, shares in found.items()
        }

    def _lines(self, name: str, rates: Float64s) -> Float64s:
        """A share at `rates`, [rates], by where its percentiles cross."""
        crossed, there = self._crossings[name]
        known = np.concatenate([self._rates, crossed])
        shares = np.concatenate([self._shares[name], there])
        order = np.argsort(known, kind="stable")
        at = known[order]
        return np.interp(rates, at, self._between(shares[order], self._shares[name], at))

    def _between(self, shares: Float64s, fitted: Float64s, rates: Float64s) -> Float64s:
        """Shares at `rates` that never rise nor pass those of the simulated rates around them."""
        above = fitted[np.searchsorted(self._rates, rates, side="right") - 1]
        below = fitted[np.searchsorted(self._rates, rates, side="left")]
        kept: Float64s = np.minimum.accumulate(np.clip(shares, below, above))
        return kept

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
        rates, logs = self._rates[1:], self._log_tails(name)
        return np.exp([np.interp(rates_per_s, rates, each) for each in logs])

    def _log_tails(self, name: str) -> Float64s:
        """Logarithms of what was simulated, [TAIL, points]."""
        times_s = np.array([getattr(point, name) for point in self.points], dtype=np.float64).T
        logs: Float64s = np.log(np.maximum(times_s, _LEAST_S))
        return logs


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
