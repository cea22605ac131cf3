"""Service levels kept, by request and by class."""

import math
from dataclasses import dataclass, replace

import numpy as np

from loadgen.measures.columns import Bools, Columns
from loadgen.measures.intervals import share_estimate
from loadgen.measures.run_measures import BoundKept
from loadgen.measures.samples import Samples, token_gaps, values_ms
from loadgen.measures.slo import Bound, Slo
from loadgen.records.arrays import Float64s, Int64s
from loadgen.records.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """`good`: requests that kept every limit, [requests]; `bounds` and `attainment` are of those
    measured and not aborted. All classes together have no bounds.
    """

    good: Bools
    bounds: tuple[BoundKept, ...]
    attainment: Estimate | None


def judge(columns: Columns, level: Slo, *, dilation: float, measured: Bools) -> Judgement:
    """Judge every request; `measured`, [requests], are those after the skipped part.

    A failed request is infinitely late; an aborted one does not count. A reply without a time
    between tokens keeps every limit on TPOT and ITL; a request keeps one on ITL at pN if N % of its
    own gaps do.
    """
    good = columns.streamed.copy()
    for bound in level.bounds:
        good &= _within(columns, bound, dilation)
    rows = columns.where(measured & ~columns.aborted)
    bounds = tuple(_kept(rows, bound, dilation) for bound in level.bounds)
    return replace(judged(columns, good, measured=measured), bounds=bounds)


def judged(columns: Columns, good: Bools, *, measured: Bools) -> Judgement:
    """Sum up kept and judged requests, [requests] each; without bounds."""
    counted = measured & ~columns.aborted
    attainment = _attainment(columns.where(counted), good[counted])
    return Judgement(good=good, bounds=(), attainment=attainment)


def _attainment(rows: Columns, good: Bools) -> Estimate | None:
    """The share that is `good`, [requests]; None without requests."""
    if not len(rows):
        return None
    lasted = (rows.ended_ns - rows.intended_ns).astype(np.float64)
    kept = Samples.in_order(good.astype(np.float64))
    return share_estimate(kept, like=Samples.in_order(lasted))


def _within(columns: Columns, bound: Bound, dilation: float) -> Bools:
    """Requests within the limit, [requests]; undefined for those without a reply."""
    if bound.measure == "itl_ms":
        gaps_ms, _, row = token_gaps(columns, dilation)
        late = np.bincount(row[gaps_ms > bound.limit], minlength=len(columns))  # [requests]
        allowed = (1 - bound.percentile / 100) * np.maximum(columns.chunks - 1, 0)
        return late <= allowed + 1e-9  # 1 - 0.99 is a little more or less than 0.01
    if bound.measure == "tpot_ms":
        kept = np.ones(len(columns), dtype=np.bool_)
        kept[columns.spread] = values_ms(columns, bound.measure, dilation) <= bound.limit
        return kept
    return values_ms(columns, bound.measure, dilation) <= bound.limit


def _kept(rows: Columns, bound: Bound, dilation: float) -> BoundKept:
    """Hold the percentile of all values against the limit."""
    value = _percentile(bound_values(rows, bound, dilation)[0], bound.percentile)
    return BoundKept(
        measure=bound.measure,
        limit=bound.limit,
        percentile=bound.percentile,
        value=value,
        kept=value is not None and value <= bound.limit,
    )


def bound_values(rows: Columns, bound: Bound, dilation: float) -> tuple[Float64s, Int64s]:
    """All values of the bound's measure in ms, and their times in wall ns, both [values].

    A failed request is infinitely late, for ITL with as many gaps as asked for. A reply without a
    time between tokens has no TPOT and no ITL.
    """
    failed = ~rows.streamed
    if bound.measure == "itl_ms":
        gaps_ms, at_ns, _ = token_gaps(rows, dilation)
        missing = np.where(failed, np.maximum(rows.asked_output_tokens - 1, 0), 0)  # [requests]
        late_ms = np.full(int(missing.sum()), np.inf)
        late_ns = np.repeat(rows.ended_ns, missing)
        return np.concatenate([gaps_ms, late_ms]), np.concatenate([at_ns, late_ns])
    has = rows.spread if bound.measure == "tpot_ms" else rows.streamed
    values_of_all = np.full(len(rows), np.inf)  # [requests]
    values_of_all[has] = values_ms(rows.where(has), bound.measure, dilation)
    return values_of_all[has | failed], rows.intended_ns[has | failed]


def _percentile(values: Float64s, percentile: float) -> float | None:
    """Interpolate between ranks; None without values, or for an infinite result."""
    rank = percentile / 100 * (values.size - 1)
    below, above = math.floor(rank), math.ceil(rank)
    if not values.size or above > np.isfinite(values).sum() - 1:
        return None
    ordered = np.partition(values, [below, above])
    return float(ordered[below] + (ordered[above] - ordered[below]) * (rank - below))
