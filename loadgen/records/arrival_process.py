"""Regularity of a list of times: rate, spread of gaps, dispersion of counts.

Among the records because planning and measuring arrivals both need it, and do not import each
other.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadgen.records.arrays import Int64s

# The index of dispersion is a variance over a mean, so it needs bins that hold several arrivals,
# and several such bins. With b bins a Poisson process shows 1 with a standard error of
# sqrt(2 / (b - 1)): 0.47 for the fewest bins, 0.045 for the most.
ARRIVALS_PER_BIN: Final = 10
BINS_MIN: Final = 10
BINS_MAX: Final = 1_000
# Times are whole nanoseconds: the gaps of an even schedule differ by that rounding alone.
GRAIN_NS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """Figures of a list of times; None where they are too few, or all the same.

    `rate_per_s` is (n - 1) / (last - first). `gap_cv` is the gaps' coefficient of variation: 0 for
    even ones (to the ns), 1 for a Poisson process. `dispersion` is the index of dispersion of
    counts (variance / mean) in `bins` equal bins from the first to the last: 0 for even gaps, 1 for
    a Poisson process, more for bursts and changing rates. Bins hold 10 arrivals on average, at most
    1,000 bins; fewer than 10 bins (100 arrivals) give no figure.
    """

    rate_per_s: float | None
    gap_cv: float | None
    dispersion: float | None
    bins: int


def arrival_process(times_ns: Int64s, *, ns_per_s: float = 1e9) -> ArrivalProcess:
    """Describe `times_ns`, int64[n] in any order, with `ns_per_s` to the second."""
    times = np.sort(times_ns)
    gaps = np.diff(times)  # [n - 1]
    span_ns = int(times[-1] - times[0]) if times.size else 0
    bins = min(times.size // ARRIVALS_PER_BIN, BINS_MAX)
    if not span_ns:
        return ArrivalProcess(rate_per_s=None, gap_cv=None, dispersion=None, bins=0)
    dispersion = None
    if bins >= BINS_MIN:
        counts = np.histogram(times - times[0], bins=bins, range=(0, span_ns))[0]
        dispersion = float(counts.var() / counts.mean())
    return ArrivalProcess(
        rate_per_s=gaps.size / (span_ns / ns_per_s),
        gap_cv=_gap_cv(gaps) if gaps.size > 1 else None,
        dispersion=dispersion,
        bins=bins if dispersion is not None else 0,
    )


def _gap_cv(gaps_ns: Int64s) -> float:
    spread_ns = float(gaps_ns.std())
    return 0.0 if spread_ns < GRAIN_NS else spread_ns / float(gaps_ns.mean())
