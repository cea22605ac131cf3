"""Series for a run's charts, few points for any number of requests. Pure.

Times are seconds and latencies ms of the run's time.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.measures.columns import Columns
from loadgen.records.arrays import Float64s, Int64s

BINS_MAX: Final = 120
BINS_MIN: Final = 10
REQUESTS_PER_BIN: Final = 8
POINTS_MAX: Final = 1_200
"""Most single requests drawn: the slowest of each bin, and an even choice."""
_CURVE_POINTS: Final = 200
_BARS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bins:
    """Equal pieces of the run's time: `edges_ns`, int64[bins + 1], in wall ns from its start.

    The first holds the first due request, the last the last end.
    """

    edges_ns: Int64s
    dilation: float

    @classmethod
    def of(cls, columns: Columns, dilation: float) -> "Bins":
        """Bins with some requests each on average; of at least one request."""
        count = int(np.clip(len(columns) // REQUESTS_PER_BIN, BINS_MIN, BINS_MAX))
        first_ns = int(columns.intended_ns.min())
        last_ns = max(int(columns.ended_ns.max()), first_ns + count)
        edges_ns = np.linspace(first_ns, last_ns, count + 1).astype(np.int64)
        return cls(edges_ns=edges_ns, dilation=dilation)

    def __len__(self) -> int:
        return self.edges_ns.size - 1

    @property
    def edges_s(self) -> Float64s:
        """Edges in seconds of the run's time, [bins + 1]."""
        return self.edges_ns / (1e9 * self.dilation)

    @property
    def middles_s(self) -> Float64s:
        """Middles of the bins, [bins]."""
        return (self.edges_s[:-1] + self.edges_s[1:]) / 2

    @property
    def width_s(self) -> float:
        """Length of a bin."""
        return float(self.edges_s[-1] - self.edges_s[0]) / len(self)

    def which(self, at_ns: Int64s) -> Int64s:
        """The bin of each time, [times]."""
        found = np.searchsorted(self.edges_ns, at_ns, side="right") - 1
        return np.clip(found, 0, len(self) - 1)

    def rates(self, at_ns: Int64s, weights: Float64s | None = None) -> Float64s:
        """The number of times in each bin, per second, [bins]."""
        counts = np.bincount(self.which(at_ns), weights=weights, minlength=len(self))
        return counts / self.width_s


def percentile_in_bins(bins: Bins, at_ns: Int64s, values: Float64s, percentile: float) -> Float64s:
    """The percentile of the values in each bin, [bins]; NaN for an empty one."""
    which = bins.which(at_ns)
    order = np.argsort(which, kind="stable")
    found = np.full(len(bins), np.nan)
    starts = np.searchsorted(which[order], np.arange(len(bins) + 1))
    for place in range(len(bins)):  # at most BINS_MAX
        chosen = values[order[starts[place] : starts[place + 1]]]
        if chosen.size:
            found[place] = np.percentile(chosen, percentile)
    return found


def shown_points(bins: Bins, at_ns: Int64s, values: Float64s) -> Int64s:
    """Requests to draw: all, or the slowest of each bin and an even choice, [points]."""
    if values.size <= POINTS_MAX:
        return np.arange(values.size)
    even = np.linspace(0, values.size - 1, POINTS_MAX - len(bins)).astype(np.int64)
    rising = np.lexsort((values, bins.which(at_ns)))
    which = bins.which(at_ns)[rising]
    slowest = rising[np.flatnonzero(np.append(which[1:] != which[:-1], True))]
    return np.unique(np.concatenate([even, slowest]))


def under_way(bins: Bins, begun_ns: Int64s, ended_ns: Int64s) -> tuple[Float64s, Float64s]:
    """Mean and maximum of concurrent requests in each bin, both [bins].

    Each is under way from its `begun_ns` to its `ended_ns`, both [requests].
    """
    at_ns = np.concatenate([begun_ns, ended_ns, bins.edges_ns])
    step = np.concatenate(
        [np.ones(begun_ns.size), -np.ones(ended_ns.size), np.zeros(len(bins) + 1)]
    )
    order = np.lexsort((step, at_ns))  # what ends at an instant goes before what begins
    at_ns, level = at_ns[order], np.cumsum(step[order])  # [events]
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at_ns))])
    edges = np.searchsorted(at_ns, bins.edges_ns, side="left")
    mean = np.diff(area[edges]) / np.diff(bins.edges_ns)
    most = np.maximum.reduceat(level, edges)[:-1]
    return mean, most


def cumulative(values: Float64s) -> tuple[Float64s, Float64s]:
    """Points of the distribution: value, and the share of samples at or below, rising.

    All samples if few, else a grid that is fine in the upper tail. At least one sample.
    """
    if values.size <= _CURVE_POINTS:
        return np.sort(values), np.arange(1, values.size + 1) / values.size
    tail = 1 - np.logspace(-1, -np.log10(values.size), _CURVE_POINTS // 2)
    share = np.unique(np.concatenate([np.linspace(0, 0.9, _CURVE_POINTS // 2), tail, [1.0]]))
    return np.quantile(values, share, method="inverted_cdf").astype(np.float64), share


def bars(values: Float64s) -> tuple[Float64s, Float64s]:
    """Edges [bars + 1], even on a logarithmic axis, and the share of values in each [bars].

    Values below a thousandth of the median are in the first bar; at least one is above 0.
    """
    positive = values[values > 0]
    low = max(float(positive.min()), float(np.median(positive)) / 1_000)
    high = max(float(positive.max()), low * 1.01)
    edges = np.geomspace(low, high, _BARS + 1)
    counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
    return edges.astype(np.float64), counts / values.size
