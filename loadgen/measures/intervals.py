"""95 % confidence intervals that allow for dependent samples.

Neighbouring requests wait in the same queue, so a thousand of them say less than a thousand
independent ones. How much less is measured: time is cut into cells, and the spread of sums over
overlapping blocks of cells gives the variance of a mean (overlapping batch means, Meketon and
Schmeiser 1984: b block lengths of time have the degrees of freedom of 1.5 b independent blocks).

* A mean and a rate: that variance and Student's t; in the logarithm for what is never negative,
  so that no bound is. No events have no interval: they do not tell how rare one is.
* A share (of failed requests, of those that kept an SLO): Wilson's interval for as many
  independent samples as would have that variance.
* A percentile: the share of samples at or below it is binomial; its exact interval for the
  effective number of samples (Korn and Graubard 1998), read off the sorted samples (Woodruff
  1952). For independent samples these are the binomial intervals between order statistics.

*Assumed*: the load is steady over the window, and dependence reaches less far than a block, a tenth
of the window. A queue that only just empties reaches further: intervals are then too narrow.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # special alone: stats takes a second

from loadgen.measures.columns import Bools
from loadgen.measures.samples import Samples
from loadgen.records.arrays import Float64s
from loadgen.records.estimate import Estimate

BLOCKS: Final = 10
"""A block is this part of the cells: a compromise between the dependence it covers and how surely
its spread is known.
"""

EVENTS_MIN: Final = 10
"""With n independent events a standard error is 1 / sqrt(n) of the rate, and known to 1 / sqrt(2 n)
of itself: 22 % for 10, less well in fewer blocks than that.
"""

TAIL: Final = 0.025  # on either side of a 95 % interval


def mean_estimate(samples: Samples) -> Estimate:
    """Estimate the mean of at least one sample."""
    mean = float(samples.values.mean())
    sums = _sums(samples, samples.values - mean)
    return _by_student(mean, sums, len(samples), signed=bool(samples.values.min() < 0))


def independent_estimate(values: Float64s) -> Estimate:
    """Estimate the mean of at least one independent value, as of runs that differ by their seed."""
    mean = float(values.mean())
    if values.size < 2:
        return Estimate(value=mean)
    half = student_quantile(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Estimate(value=mean, low=mean - half, high=mean + half)


def rate_estimate(amounts: Float64s, window_s: float, *, events: float) -> Estimate:
    """Estimate a rate, never negative, from equally long cells of the window.

    `events` is the number of independent causes: requests, not tokens. Below EVENTS_MIN the cells
    show too little of the spread for an interval.
    """
    value = float(amounts.sum() / window_s)
    if events < EVENTS_MIN:
        return Estimate(value=value)
    sums = amounts - amounts.mean()
    return _by_student(value, sums, window_s, signed=False)


def share_estimate(kept: Samples, *, like: Samples | None = None) -> Estimate:
    """Estimate a share from at least one value of 0 or 1.

    Where almost all are the same their dependence cannot be seen; that of `like`, another value for
    each such as a latency, then stands for it.
    """
    share = float(kept.values.mean())
    count = _independent(kept, kept.values, share)
    if count is None:
        return Estimate(value=share)
    if like is not None and min(share, 1 - share) * len(kept) < BLOCKS:
        slow = like.values <= np.median(like.values)
        count = min(count, _independent(like, slow, 0.5) or count)
    low, high = wilson(share, count, tail=TAIL)
    return Estimate(value=share, low=low, high=high)


def wilson(share: float, count: float, *, tail: float) -> tuple[float, float]:
    """Wilson's interval of a share seen in `count` independent samples (above 0).

    `tail` is the chance that the true share lies beyond it, on either side.
    """
    z2 = float(special.ndtri(1 - tail)) ** 2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count) / (1 + z2 / count)
    # Rounding must leave neither the share itself outside nor what a share can be.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def percentile_estimate(samples: Samples, ordered: Float64s, percentile: float) -> Estimate:
    """Estimate a percentile, between 0 and 100; `ordered` are the sorted values, [samples].

    Interpolated between neighbouring ranks, as numpy does by default. A bound is None with too few
    samples.
    """
    value = float(_at_rank(ordered, percentile / 100 * (ordered.size - 1)))
    share = percentile / 100
    count = _independent(samples, samples.values <= value, share)
    if count is None:
        return Estimate(value=value)
    below, above = count * share, count * (1 - share)
    low = high = None
    if (1 - share) ** count <= TAIL:  # otherwise all may well lie above the percentile
        rank = int(special.betaincinv(below, above + 1, TAIL) * ordered.size)
        low = min(value, float(ordered[rank]))
    if share**count <= TAIL:
        rank = int(np.ceil(special.betaincinv(below + 1, above, 1 - TAIL) * ordered.size))
        high = max(value, float(ordered[min(rank, ordered.size - 1)]))
    return Estimate(value=value, low=low, high=high)


def spread_of_sum(sums: Float64s) -> tuple[float, float] | None:
    """The variance of the sum over all cells, and its degrees of freedom.

    `sums` are of deviations from the mean, [cells] in the order of time, so that they add up to 0.
    None for fewer than two cells.
    """
    cells = sums.size
    if cells < 2:
        return None
    width = block_cells(cells)
    total = np.concatenate([[0.0], np.cumsum(sums)])
    blocks = total[width:] - total[:-width]  # [cells - width + 1]
    variance = float(np.mean(blocks**2)) * (cells / width) * variance_factor(cells)
    return variance, block_freedom(cells)


def block_cells(cells: int) -> int:
    """Block length of a run, in cells."""
    return max(1, cells // BLOCKS)


def variance_factor(cells: int) -> float:
    """Correction of a variance over blocks, which share a part with the whole."""
    return 1 / (1 - block_cells(cells) / cells)


def block_freedom(cells: int) -> float:
    """Degrees of freedom of a variance by overlapping blocks (batch means)."""
    width = block_cells(cells)
    return cells - 1.0 if width == 1 else 1.5 * cells / width - 1


def _by_student(value: float, sums: Float64s, divisor: float, *, signed: bool) -> Estimate:
    found = spread_of_sum(sums)
    if found is None or (value <= 0 and not signed):
        return Estimate(value=value)
    variance, freedom = found
    half = student_quantile(freedom) * math.sqrt(variance) / divisor
    if signed:
        return Estimate(value=value, low=value - half, high=value + half)
    factor = math.exp(half / value)  # the deviation of a logarithm is the relative one
    return Estimate(value=value, low=value / factor, high=value * factor)


def _independent(samples: Samples, held: Float64s | Bools, share: float) -> float | None:
    """Independent samples worth as much for the share of `held`; None for fewer than two."""
    size = len(samples)
    found = spread_of_sum(_sums(samples, held - held.mean()))
    if found is None:
        return None
    variance, freedom = found
    if variance <= 0:
        return float(size)
    count = share * (1 - share) * size**2 / variance
    surer = student_quantile(size - 1) / student_quantile(freedom)  # the variance is a guess too
    return float(min(size, count * surer**2))


def _sums(samples: Samples, values: Float64s) -> Float64s:
    """Sums by cell, [samples] -> [cells]."""
    return np.asarray(
        np.bincount(samples.cell, weights=values, minlength=samples.cells), dtype=np.float64
    )


def again_low(values: Sequence[float], *, tail: float = TAIL) -> float | None:
    """Student's bound for one more of these values, which it is below with a chance of `tail`; None
    for fewer than two.
    """
    count = len(values)
    if count < 2:
        return None
    spread = float(np.std(values, ddof=1)) * (1 + 1 / count) ** 0.5
    return float(np.mean(values) - student_quantile(count - 1, tail) * spread)


def again_low_at_most(
    values: Sequence[float], count: int, *, tail: float = TAIL, most: float = math.inf
) -> float:
    """The most that `again_low` of `count` values up to `most` can be, of which one or more are
    known.
    """
    more = count - len(values)
    mean, squares = float(np.mean(values)), float(np.var(values) * len(values))
    gain = more / count  # of the mean, for each of `above`, by which the others exceed it
    weight = len(values) * gain  # of its square, among the squares of deviations
    loss = student_quantile(count - 1, tail) ** 2 * (1 + 1 / count) / (count - 1)  # for each
    above = most - mean if more else 0.0
    if (steeper := weight * (weight * loss - gain**2)) > 0:
        above = min(above, gain * math.sqrt(squares / steeper))
    if math.isinf(above):
        return math.inf
    return mean + gain * above - math.sqrt(loss * (squares + weight * above**2))


def student_quantile(freedom: float, tail: float = TAIL) -> float:
    """The upper quantile of Student's t that leaves `tail`."""
    return float(special.stdtrit(freedom, 1 - tail))


def _at_rank(ordered: Float64s, rank: float) -> float:
    below = int(rank)
    above = min(below + 1, ordered.size - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (rank - below))
