"""Gaps between arrivals: a renewal process of mean 1.

Drawn once, then stretched by the rate (`loadgen.arrivals.schedule`), so that a changing rate keeps
the burstiness.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from loadgen.arrivals.arrival_spec import Gaps
from loadgen.records.arrays import Float64s

# How many gaps are drawn at a time when only an end is known, and the least and the most of them.
_CHUNK_MIN: Final = 1_024
_CHUNK_MAX: Final = 1 << 20


class RenewalArrivals:
    """Endless arrivals with gaps of mean 1; each draw continues the last.

    `gaps` "constant" are all 1, "poisson" exponential, "gamma" of shape `burstiness`, with
    coefficient of variation 1 / sqrt(burstiness). Constant ones begin at 0, the others within a
    gap, so that t units hold t arrivals on average; a first arrival at 0 would add one. The same
    seed gives the same first arrivals however many are drawn.
    """

    def __init__(self, gaps: Gaps, *, burstiness: float, seed: int) -> None:
        chance = np.random.default_rng([seed, 1])
        draws: dict[Gaps, Callable[[int], Float64s]] = {
            "constant": np.ones,
            "poisson": chance.standard_exponential,
            "gamma": lambda count: chance.standard_gamma(burstiness, count) / burstiness,
        }
        self._draw = draws[gaps]
        # A moment lies in a gap of length g with a density of g f(g), and anywhere within it: for
        # a gamma distribution of shape k that is one of shape k + 1, for k = 1 an exponential one.
        shape = burstiness if gaps == "gamma" else 1.0
        self._first = (
            0.0
            if gaps == "constant"
            else float(chance.uniform() * chance.standard_gamma(shape + 1) / shape)
        )
        self._last: float | None = None

    def next(self, count: int) -> Float64s:
        """The next `count` arrivals, float64[count], not falling."""
        if not count:
            return np.zeros(0)
        if self._last is None:
            arrivals = np.cumsum(np.append(self._first, self._draw(count - 1)))
        else:
            arrivals = np.cumsum(np.append(self._last, self._draw(count)))[1:]
        self._last = float(arrivals[-1])
        return arrivals

    def until(self, end: float) -> Float64s:
        """All arrivals before a finite `end`."""
        chunks: list[Float64s] = [np.zeros(0)]
        while not chunks[-1].size or chunks[-1][-1] < end:
            left = end - (chunks[-1][-1] if chunks[-1].size else 0.0)
            chunks.append(self.next(int(min(max(_CHUNK_MIN, 1.05 * left), _CHUNK_MAX))))
        arrivals = np.concatenate(chunks)
        return arrivals[arrivals < end]
