"""Sums of a batch that determine a step's work, by rank."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.specs.batch import StepBatch
from emulator.specs.model import ModelSpec
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import contraction_rows, moving_rows, output_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """All float64[ranks].

    A new token attends to the context, the new tokens before it, and itself: `attended` counts
    these (query, key) pairs, `window_attended` those inside the window, `window_context_tokens` the
    cached tokens that a window still reaches. `head_macs`: MACs of one head in one full-attention
    layer, without projections; `window_head_macs`: in one with a window; `issued_*`: those that
    occupy the matrix engine; `*cached_macs`: their parts on a latent's cache. `requests` have
    tokens in this step, `prefills` of them prompt tokens.
    """

    tokens: Float64s
    requests: Float64s
    prefills: Float64s
    context_tokens: Float64s
    attended: Float64s
    head_macs: Float64s
    issued_head_macs: Float64s
    cached_macs: Float64s
    issued_cached_macs: Float64s
    window_context_tokens: Float64s
    window_attended: Float64s
    window_head_macs: Float64s
    window_issued_head_macs: Float64s
    logit_rows: Float64s


def rank_totals(
    batch: StepBatch, model: ModelSpec, shape: IssueShape, *, dummy: Int64s | None = None
) -> RankTotals:
    """Sum the requests of each rank.

    `dummy` int64[ranks], 0 or 1: tokens beside the requests, each attending to itself alone,
    without logits.
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
    heads = _head_products(model, shape, new=new, context=context, pairs=attended)
    issued_up = moving_rows(shape.engine, by_rank(heads.up_rows)) * shape.kv_up_macs
    per_score = 2 * model.head_dim
    windowed = by_rank(per_score * window_attended) if window else np.zeros(batch.ranks)
    window_issued = (
        by_rank(_issued_scores(model, shape, new, window_context, window=window))
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
        cached_macs=by_rank(heads.cached_macs),
        issued_cached_macs=by_rank(heads.issued_cached_macs),
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

    The first tokens still see everything, the rest `window` keys each.
    """
    growing = np.clip(window - context, 0, new)
    growing_pairs: Int64s = growing * context + growing * (growing + 1) // 2
    return growing_pairs + (new - growing) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadProducts:
    """One head in one layer for each request, all float64[requests].

    `issued_macs` are issued for scores and weighted sums; `up_rows` are rows of a latent's
    up-projection, which all requests of a rank share.
    """

    macs: Float64s
    issued_macs: Float64s
    cached_macs: Float64s
    issued_cached_macs: Float64s
    up_rows: Float64s


def _head_products(
    model: ModelSpec, shape: IssueShape, *, new: Int64s, context: Int64s, pairs: Int64s
) -> _HeadProducts:
    """A latent is used as it is, its up-projection folded into query and output, or unfolded into a
    head's keys and values, whichever takes a request fewer MACs: the first in decode, the second in
    prefill, as in vLLM.
    """
    latent = model.latent
    if latent is None:
        return _HeadProducts(
            macs=(2 * model.head_dim * pairs).astype(np.float64),
            issued_macs=_issued_scores(model, shape, new, context),
            cached_macs=np.zeros(len(new)),
            issued_cached_macs=np.zeros(len(new)),
            up_rows=np.zeros(len(new)),
        )
    keys = context + new
    up_macs = layer_weights(model).kv_up_macs / model.heads
    folded = pairs * latent.folded_macs_per_score + new * up_macs
    unfolded = pairs * latent.unfolded_macs_per_score + keys * up_macs
    fold = folded <= unfolded
    issued_folded = _issued_pairs(
        shape, new, context, shape.query_group, (latent.cached_width, latent.kv_rank)
    )
    issued_unfolded = _issued_pairs(
        shape, new, context, 1, (latent.query_width_per_head, latent.value_dim)
    )
    return _HeadProducts(
        macs=np.where(fold, folded, unfolded),
        issued_macs=np.where(fold, issued_folded, issued_unfolded),
        cached_macs=np.where(fold, pairs * latent.folded_macs_per_score, 0.0),
        issued_cached_macs=np.where(fold, issued_folded, 0.0),
        up_rows=np.where(fold, new, keys).astype(np.float64),
    )


def _issued_scores(
    model: ModelSpec, shape: IssueShape, new: Int64s, context: Int64s, *, window: int = 0
) -> Float64s:
    widths = (model.head_dim, model.head_dim)
    return _issued_pairs(shape, new, context, shape.query_group, widths, window=window)


def _issued_pairs(
    shape: IssueShape,
    new: Int64s,
    context: Int64s,
    group: int,
    widths: tuple[int, int],
    *,
    window: int = 0,
) -> Float64s:
    """MACs issued for scores and weighted sums of one head: [requests].

    Keys, then values, are the tiles that stay; queries of the `group` heads that share them stream
    past. A score contracts widths[0] elements, a weighted sum makes widths[1]. The least issue size
    binds only on average over a request's tiles.
    """
    engine = shape.engine
    score = contraction_rows(engine, np.array(float(widths[0])))
    value = output_columns(engine, np.array(float(widths[1])))
    columns, rows = engine.tile_columns.count, engine.tile_rows.count
    least = engine.moving_rows_min.value
    of_keys = _tile_rows(new, context, columns, window=window)  # tiles of keys as outputs
    of_values = _tile_rows(new, context, rows, window=window)  # tiles of values to contract
    issued: Float64s = (
        np.maximum(of_keys.queries, least / group * of_keys.tiles) * columns * score
        + np.maximum(of_values.queries, least / group * of_values.tiles) * rows * value
    )
    return issued


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileRows:
    """Of one head for each request: tiles of keys, and queries that pass any, summed over tiles."""

    tiles: Int64s
    queries: Int64s


def _tile_rows(new: Int64s, context: Int64s, tile: int, *, window: int) -> _TileRows:
    """Every query passes the tiles that hold a key it sees: those that begin at it or before.

    Tile k begins at key k x tile, and new token i sees keys up to context + i; so tiles k > context
    / tile are spared by k x tile - context queries each. With a window, a query passes no more
    tiles than it touches.
    """
    tiles = -(-(context + new) // tile)
    first = context // tile + 1  # the first tile that a query is spared
    spared_tiles = np.maximum(tiles - first, 0)
    spared = tile * (first + tiles - 1) * spared_tiles // 2 - context * spared_tiles
    queries = new * tiles - spared
    if window:
        queries = np.minimum(queries, new * (-(-(window - 1) // tile) + 1))
    return _TileRows(tiles=tiles, queries=queries)
