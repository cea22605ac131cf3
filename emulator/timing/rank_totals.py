"""Sums of a batch that determine a step's work, by rank."""

from dataclasses import dataclass

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.specs.batch import StepBatch
from emulator.specs.matrix_engine import MatrixEngine
from emulator.specs.model import ModelSpec
from emulator.timing.core_attention import DECODED_TOKENS_MAX
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.matrix_time import contraction_rows, moving_rows, output_columns
from emulator.timing.work import is_busy


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTotals:
    """All float64[ranks].

    A new token attends to the context, the new tokens before it, and itself: `attended` counts
    these (query, key) pairs, `window_attended` those inside the window, `window_context_tokens` the
    cached tokens that a window still reaches. `head_macs`: MACs of one head in one full-attention
    layer, without projections; `window_head_macs`: in one with a window; `issued_*`: those that
    occupy the matrix engine; `*cached_macs`: their parts on a latent's cache. `requests` have
    tokens in this step, `prefills` of them prompt tokens.

    Where a chip's cores divide decoding requests by batch or sequence, `decode_*` are their tokens,
    1 where there is any, and their cached tokens; else 0. By batch, `idle_*` is what cores that
    have a request fewer wait for: the mean request's (assumed).
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
    decode_tokens: Float64s
    any_decodes: Float64s
    decode_context_tokens: Float64s
    idle_context_tokens: Float64s
    idle_attended: Float64s
    idle_head_macs: Float64s
    window_decode_context_tokens: Float64s
    window_idle_context_tokens: Float64s
    window_idle_attended: Float64s
    window_idle_head_macs: Float64s


def rank_totals(
    batch: StepBatch, model: ModelSpec, shape: IssueShape, *, dummy: Int64s | None = None
) -> RankTotals:
    """Sum the requests of each rank.

    `dummy` int64[ranks], 0 or 1: tokens beside the requests, each attending to itself alone,
    without logits.
    """
    rank, new, context = batch.rank, batch.new_tokens, batch.context_tokens
    if dummy is not None and dummy.any():
        alone = np.flatnonzero(dummy)  # dummies are rows like any other
        rank = np.concatenate([rank, alone])
        new = np.concatenate([new, dummy[alone]])
        context = np.concatenate([context, np.zeros_like(alone)])

    def by_rank(rows: Int64s | Float64s) -> Float64s:
        # [requests] -> [ranks]
        return np.bincount(rank, weights=rows, minlength=batch.ranks).astype(np.float64)

    attended = new * context + new * (new + 1) // 2
    window = model.window_tokens
    window_attended = _window_attended(new, context, window)
    window_context = np.minimum(context, max(window - 1, 0))
    folds = _folds(model, new=new, context=context, pairs=attended)
    decodes = _decodes(shape, new=new, context=context, folds=folds)
    idle = _idle_share(shape, by_rank(decodes))  # [ranks]
    heads = _head_products(
        model, shape, new=new, context=context, pairs=attended, folds=folds, decodes=decodes
    )
    issued_up = moving_rows(shape.engine, by_rank(heads.up_rows)) * shape.kv_up_macs
    per_score = 2 * model.head_dim
    windowed = by_rank(per_score * window_attended) if window else np.zeros(batch.ranks)
    issued_in_window = (
        _issued_scores(model, shape, new, window_context, window=window, decodes=decodes)
        if window
        else np.zeros(len(new))
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
        window_issued_head_macs=by_rank(issued_in_window),
        logit_rows=batch.logit_rows.astype(np.float64),
        decode_tokens=by_rank(decodes * new),
        any_decodes=is_busy(by_rank(decodes)),
        decode_context_tokens=by_rank(decodes * context),
        idle_context_tokens=idle * by_rank(decodes * context),
        idle_attended=idle * by_rank(decodes * attended),
        idle_head_macs=idle * by_rank(decodes * heads.issued_macs),
        window_decode_context_tokens=by_rank(decodes * window_context),
        window_idle_context_tokens=idle * by_rank(decodes * window_context),
        window_idle_attended=idle * by_rank(decodes * window_attended),
        window_idle_head_macs=idle * by_rank(decodes * issued_in_window),
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


def _folds(model: ModelSpec, *, new: Int64s, context: Int64s, pairs: Int64s) -> Bools:
    """Whether each request uses a latent as it is, its up-projection folded into query and output.

    Or unfolds it into a head's keys and values, whichever takes fewer MACs: the first in decode,
    the second in prefill, as in vLLM. A model without a latent has nothing to unfold.
    """
    latent = model.latent
    if latent is None:
        return np.ones(len(new), dtype=np.bool_)
    up_macs = layer_weights(model).kv_up_macs / model.heads
    folded = pairs * latent.folded_macs_per_score + new * up_macs
    fewer: Bools = folded <= pairs * latent.unfolded_macs_per_score + (context + new) * up_macs
    return fewer


def _decodes(shape: IssueShape, *, new: Int64s, context: Int64s, folds: Bools) -> Int64s:
    """1 for each request whose attention is not divided as a prompt's: [requests]."""
    if not shape.decodes.is_apart:
        return np.zeros(len(new), dtype=np.int64)
    return (folds & (context > 0) & (new <= DECODED_TOKENS_MAX)).astype(np.int64)


def _idle_share(shape: IssueShape, decodes: Float64s) -> Float64s:
    """Requests that cores wait for over those that they have: [ranks] -> [ranks]."""
    width = shape.decodes.by_batch
    longest = np.ceil(decodes / width) * width
    idle: Float64s = longest / np.maximum(decodes, 1.0) - is_busy(decodes)
    return idle


def _head_products(
    model: ModelSpec,
    shape: IssueShape,
    *,
    new: Int64s,
    context: Int64s,
    pairs: Int64s,
    folds: Bools,
    decodes: Int64s,
) -> _HeadProducts:
    latent = model.latent
    if latent is None:
        return _HeadProducts(
            macs=(2 * model.head_dim * pairs).astype(np.float64),
            issued_macs=_issued_scores(model, shape, new, context, decodes=decodes),
            cached_macs=np.zeros(len(new)),
            issued_cached_macs=np.zeros(len(new)),
            up_rows=np.zeros(len(new)),
        )
    keys = context + new
    up_macs = layer_weights(model).kv_up_macs / model.heads
    folded = pairs * latent.folded_macs_per_score
    unfolded = pairs * latent.unfolded_macs_per_score
    widths = (latent.cached_width, latent.kv_rank)
    issued_folded = _issued_as_divided(shape, new, context, widths, decodes=decodes)
    issued_unfolded = _issued_pairs(
        shape.engine, new, context, 1, (latent.query_width_per_head, latent.value_dim)
    )
    return _HeadProducts(
        macs=np.where(folds, folded + new * up_macs, unfolded + keys * up_macs),
        issued_macs=np.where(folds, issued_folded, issued_unfolded),
        cached_macs=np.where(folds, folded, 0.0),
        issued_cached_macs=np.where(folds, issued_folded, 0.0),
        up_rows=np.where(folds, new, keys).astype(np.float64),
    )


def _issued_scores(
    model: ModelSpec,
    shape: IssueShape,
    new: Int64s,
    context: Int64s,
    *,
    window: int = 0,
    decodes: Int64s,
) -> Float64s:
    widths = (model.head_dim, model.head_dim)
    return _issued_as_divided(shape, new, context, widths, window=window, decodes=decodes)


def _issued_as_divided(
    shape: IssueShape,
    new: Int64s,
    context: Int64s,
    widths: tuple[int, int],
    *,
    window: int = 0,
    decodes: Int64s,
) -> Float64s:
    """`_issued_pairs` of prompts, and of decodes."""
    prompts = _issued_pairs(shape.engine, new, context, shape.prompts.group, widths, window=window)
    if not shape.decodes.is_apart:
        return prompts
    apart, group = shape.decodes.by_keys, shape.decodes.group
    decoded = _issued_pairs(shape.engine, new, context, group, widths, window=window, apart=apart)
    return np.where(decodes > 0, decoded, prompts)


def _issued_pairs(
    engine: MatrixEngine,
    new: Int64s,
    context: Int64s,
    group: int,
    widths: tuple[int, int],
    *,
    window: int = 0,
    apart: int = 1,
) -> Float64s:
    """MACs issued for scores and weighted sums of one head: [requests].

    Keys, then values, are the tiles that stay; queries of the `group` heads that share them stream
    past. A score contracts widths[0] elements, a weighted sum makes widths[1]. The least issue size
    binds only on average over a request's tiles. Keys on `apart` cores take a tile of each.
    """
    score = contraction_rows(engine, np.array(float(widths[0])))
    value = output_columns(engine, np.array(float(widths[1])))
    columns, rows = engine.tile_columns.count, engine.tile_rows.count
    least = engine.moving_rows_min.value
    of_keys = _tile_rows(new, context, columns * apart, window=window)  # of keys as outputs
    of_values = _tile_rows(new, context, rows * apart, window=window)  # of values to contract
    issued: Float64s = apart * (
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
