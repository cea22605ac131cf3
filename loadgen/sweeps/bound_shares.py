"""Confidence that each bound of an SLO is kept at a load, over all runs at that load.

A bound `ttft=200ms@p99` is kept if at least 99 % of requests have a TTFT of at most 200 ms. The
observed share is binomial, with Wilson's interval for the true one: kept if the whole interval lies
at or above 99 %, missed if below, else undecided.

Neighbouring requests wait in one queue, so n of them are worth fewer independent ones, by the
variance of the share by batch means (`loadgen.measures.intervals`) over the independent one. Late
requests are few, so this is measured twice, at the limit and at the 90th percentile of the values,
where lateness comes in runs as well, and the larger counts. At 70 % load of an M/M/1 queue, 95 %
intervals that assume independence hold the true share in 30 % of runs of 1,500 requests, these in
90 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special  # type: ignore[import-untyped]  # special alone: stats takes a second

from loadgen.durations import duration_words
from loadgen.measures.columns import Bools, Columns
from loadgen.measures.goodput import bound_values
from loadgen.measures.intervals import spread_of_sum, wilson
from loadgen.measures.samples import Samples
from loadgen.measures.slo import MEASURES, Bound, Slo
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import BoundShare, Verdict

_PROXY_PERCENTILE: Final = 90.0
_TAIL: Final = 0.025  # where the two are compared
_TYPED: Final = {name: typed for typed, name in MEASURES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One run's samples of one bound: number, number within it, and the variance of their sum over
    that of independent ones (at least 1).
    """

    samples: int
    kept: int
    inflation: float


def held(record: RunRecord, traffic_class: str, bound: Bound) -> Held:
    """Hold a class's samples in one run against a bound.

    A failed request is infinitely late; aborted ones and the skipped part do not count. For ITL
    each gap is a sample.
    """
    columns = Columns.of([each for each in record.results if each.traffic_class == traffic_class])
    rows = columns.where(~columns.aborted & (columns.intended_ns >= record.header.skip_ns))
    unordered, at_ns = bound_values(rows, bound, record.header.dilation)
    values = Samples.in_order(unordered[np.argsort(at_ns, kind="stable")])
    if not len(values):
        return Held(samples=0, kept=0, inflation=1.0)
    kept = values.values <= bound.limit  # [samples]
    finite = values.values[np.isfinite(values.values)]
    inflation = _inflation(values, kept)
    if finite.size:
        usual = values.values <= np.percentile(finite, _PROXY_PERCENTILE)
        inflation = max(inflation, _inflation(values, usual))
    return Held(samples=len(values), kept=int(kept.sum()), inflation=inflation)


def bound_share(
    runs: Sequence[Held], *, traffic_class: str, bound: Bound, tail: float
) -> BoundShare:
    """Pool runs. `tail` is the chance of error on either side, as in 0.025."""
    needed = bound.percentile / 100
    samples = sum(run.samples for run in runs)
    words = f"{_TYPED[bound.measure]}={duration_words(bound.limit / 1e3)}@p{bound.percentile:g}"
    if not samples:
        share, low, high, effective = 0.0, 0.0, 1.0, 0.0
    else:
        share = sum(run.kept for run in runs) / samples
        effective = samples**2 / sum(run.samples * run.inflation for run in runs)
        low, high = wilson(share, effective, tail=tail)
    verdict: Verdict = "kept" if low >= needed else "missed" if high < needed else "undecided"
    return BoundShare(
        traffic_class=traffic_class,
        words=words,
        needed=needed,
        share=share,
        low=low,
        high=high,
        samples=samples,
        effective=effective,
        verdict=verdict,
    )


def verdict_of(bounds: Sequence[BoundShare]) -> Verdict:
    """Kept if all are, missed if any is."""
    verdicts = {bound.verdict for bound in bounds}
    if "missed" in verdicts:
        return "missed"
    return "undecided" if "undecided" in verdicts else "kept"


def samples_needed(level: Slo, *, tail: float) -> int:
    """Independent samples without a miss that suffice for every bound.

    With no miss in n, Wilson's lower end is n / (n + z²).
    """
    z2 = float(special.ndtri(1 - tail)) ** 2
    strictest = max(bound.percentile for bound in level.bounds) / 100
    return math.ceil(z2 * strictest / (1 - strictest) - 1e-9)


def _inflation(values: Samples, kept: Bools) -> float:
    share = float(kept.mean())
    sums = np.bincount(values.cell, weights=kept - share, minlength=values.cells)  # [cells]
    found = spread_of_sum(sums.astype(np.float64))
    if found is None or not 0 < share < 1:
        return 1.0
    variance, freedom = found
    # The variance is a guess too: as much surer must one be as Student's t is wider than z.
    surer = float(special.stdtrit(freedom, 1 - _TAIL) / special.ndtri(1 - _TAIL))
    return max(1.0, variance / (len(values) * share * (1 - share)) * surer**2)
