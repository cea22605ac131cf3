"""The sums of a batch that a step's work depends on, rank by rank."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import contraction_rows, moving_rows, output_columns
from emulator.timing.work import Float64s

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """All float64[ranks].

    A new token attends to the context, to the new tokens before it, and to itself: `attended`
    counts these (query, key) pairs, `window_attended` those inside the model's window, and
    `window_context_tokens` the cached tokens that a window still reaches. `head_macs` are the MACs
    of one head in one layer that attends to everything, beside its projections, and
    `window_head_macs` in one with a window; `issued_head_macs` and `window_issued_head_macs` what
    they occupy the matrix engine for. `requests` have tokens in this step, and `prefills` are those
    that compute prompt tokens.
    """

    tokens: Float64s
    requests: Float64s
    prefills: Float64s
    context_tokens: Float64s
    attended: Float64s
    head_macs: Float64s
    issued_head_macs: Float64s
    window_context_tokens: Float64s
    window_attended: Float64s
    window_head_macs: Float64s
    window_issued_head_macs: Float64s
    logit_rows: Float64s


def rank_totals(
    batch: StepBatch, model: ModelSpec, shape: IssueShape, *, dummy: Int64s | None = None
) -> RankTotals:
    """Sums the requests of each rank.

    `dummy` are tokens int64[ranks], 0 or 1, that a rank computes beside its requests, each
    attending to itself alone, without logits.
    """
    rank, new, context = batch.rank, batch.new_tokens, batch.context_tokens
    if dummy is not None and dummy.any():
        idle = np.flatnonzero(dummy)  # dummies are rows like any other
        rank = np.concatenate([rank, idle])
        new = np.concatenate([new, dummy[idle]])
        context = np.concatenate([context, np.zeros_like(idle)])

    def by_rank(rows: Int64s | Float64s) -> Float64s:
        # [requests] -> [ranks]
        return np.bincount(rank, weights=rows, minlength=batch.ranks).astype(np.float64)

    attended = new * context + new * (new + 1) // 2
    window = model.window_tokens
    window_attended = _window_attended(new, context, window)
    window_context = np.minimum(context, max(window - 1, 0))
    heads = _head_products(model, shape, new=new, keys=context + new, pairs=attended)
    issued_up = moving_rows(shape.engine, by_rank(heads.up_rows)) * shape.kv_up_macs
    per_score = 2 * model.head_dim
    windowed = by_rank(per_score * window_attended) if window else np.zeros(batch.ranks)
    window_issued = (
        by_rank(_issued_scores(model, shape, new, window_context + new, window_attended))
        if window
        else np.zeros(batch.ranks)
    )
    return RankTotals(
        tokens=by_rank(new),
        requests=np.bincount(batch.rank, minlength=batch.ranks).astype(np.float64),
        prefills=prefill_requests(batch),
        context_tokens=by_rank(context),
        attended=by_rank(attended),
        head_macs=by_rank(heads.macs),
        issued_head_macs=by_rank(heads.issued_macs) + issued_up,
        window_context_tokens=by_rank(window_context),
        window_attended=by_rank(window_attended),
        window_head_macs=windowed,
        window_issued_head_macs=window_issued,
        logit_rows=batch.logit_rows.astype(np.float64),
    )


def prefill_requests(batch: StepBatch) -> Float64s:
    """Requests of each rank with more than one new token, or without context: [ranks]."""
    prefill = (batch.new_tokens > 1) | (batch.context_tokens == 0)
    counted = np.bincount(batch.rank, weights=prefill, minlength=batch.ranks)
    return counted.astype(np.float64)


def _window_attended(new: Int64s, context: Int64s, window: int) -> Int64s:
    """Pairs of each request inside a window that counts a token itself: [requests].

    The first tokens still see everything before them, the rest see `window` keys each.
    """
    growing = np.clip(window - context, 0, new)
    growing_pairs: Int64s = growing * context + growing * (growing + 1) // 2
    return growing_pairs + (new - growing) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadProducts:
    """Of one head in one layer for each request, all float64[requests].

    `macs` are its MACs; `issued_macs` what its scores and weighted sums are issued as, and
    `up_rows` the rows of a latent's up-projection, which all requests of a rank share.
    """

    macs: Float64s
    issued_macs: Float64s
    up_rows: Float64s


def _head_products(
    model: ModelSpec, shape: IssueShape, *, new: Int64s, keys: Int64s, pairs: Int64s
) -> _HeadProducts:
    """A latent is used as it is, with its up-projection folded into query and output, or unfolded
    into a head's own keys and values; each request takes the form that needs fewer MACs. That is
    the first in decode and the second in prefill, as vLLM does it.
    """
    latent = model.latent
    if latent is None:
        return _HeadProducts(
            macs=(2 * model.head_dim * pairs).astype(np.float64),
            issued_macs=_issued_scores(model, shape, new, keys, pairs),
            up_rows=np.zeros(len(new)),
        )
    up_macs = layer_weights(model).kv_up_macs / model.heads
    folded = pairs * latent.folded_macs_per_score + new * up_macs
    unfolded = pairs * latent.unfolded_macs_per_score + keys * up_macs
    fold = folded <= unfolded
    group = shape.query_group
    issued_folded = _issued_pairs(
        shape, new * group, keys, pairs, (latent.cached_width, latent.kv_rank)
    )
    issued_unfolded = _issued_pairs(
        shape, new, keys, pairs, (latent.query_width_per_head, latent.value_dim)
    )
    return _HeadProducts(
        macs=np.where(fold, folded, unfolded),
        issued_macs=np.where(fold, issued_folded, issued_unfolded),
        up_rows=np.where(fold, new, keys).astype(np.float64),
    )


def _issued_scores(
    model: ModelSpec, shape: IssueShape, new: Int64s, keys: Int64s, pairs: Int64s
) -> Float64s:
    widths = (model.head_dim, model.head_dim)
    return _issued_pairs(shape, new * shape.query_group, keys, pairs, widths)


def _issued_pairs(
    shape: IssueShape, rows: Int64s, keys: Int64s, pairs: Int64s, widths: tuple[int, int]
) -> Float64s:
    """MACs that scores and weighted sums of one head are issued as: [requests].

    Keys, then values, are the tiles that stay; `rows` queries of the heads that share them stream
    past. A score contracts widths[0] elements, a weighted sum makes widths[1].
    """
    engine, seen = shape.engine, keys.astype(np.float64)
    stretch = moving_rows(engine, rows.astype(np.float64)) / rows
    score = contraction_rows(engine, np.array(float(widths[0]))) * output_columns(engine, seen)
    value = contraction_rows(engine, seen) * output_columns(engine, np.array(float(widths[1])))
    issued: Float64s = pairs * stretch * (score + value) / seen
    return issued
