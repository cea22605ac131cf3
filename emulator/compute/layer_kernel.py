"""What of a layer's kernels Python calls: compiled for given types, and kept on disk.

An array that is an argument may be one that is not to be written; those in a tuple are as they are
here. All are row by row in memory.
"""

# mypy: no-disallow-untyped-calls
# Numba's types have none.

from typing import Final

import numpy as np
from numba import types

from emulator.arrays import Float32s, Int64s
from emulator.compiled import given, kept, sources_of
from emulator.compute import (
    attention_kernel,
    feed_forward_kernel,
    latent_kernel,
    product_kernel,
    vectors,
)
from emulator.compute.attention_kernel import HeadWeights, Places, Scoring, Spans, TurnedBy
from emulator.compute.feed_forward_kernel import ExpertChoice, Experts, Gate, RouterArrays
from emulator.compute.latent_kernel import LatentArrays

_SOURCES: Final = sources_of(
    vectors, product_kernel, attention_kernel, latent_kernel, feed_forward_kernel
)
_FLOAT, _INT, _NUMBER, _FLAG = types.float32, types.int64, types.float64, types.boolean
_LINE, _ROWS, _GROUPS, _BLOCKS = (given(_FLOAT, dimensions) for dimensions in range(1, 5))
_INTS: Final = given(_INT, 1)
_OWN_LINE, _OWN_ROWS, _OWN_GROUPS = _FLOAT[::1], _FLOAT[:, ::1], _FLOAT[:, :, ::1]
_CACHE: Final = types.Tuple([_FLOAT[:, :, :, ::1], _OWN_GROUPS])
POOLS: Final = types.Tuple([_FLOAT[:, :, :, :, ::1], _FLOAT[:, :, :, ::1]])
"""The keys and values of a whole `PagedKv`."""
SPANS: Final = types.NamedTuple([_INT[::1], _INT[::1], _INT[:, ::1]], Spans)
_SCORING: Final = types.NamedTuple([_NUMBER, _INT, _OWN_LINE], Scoring)
_TURN: Final = types.NamedTuple([_OWN_ROWS, _NUMBER, _OWN_ROWS, _OWN_ROWS], TurnedBy)
PLACES: Final = types.NamedTuple([_INT[::1], _OWN_ROWS, _OWN_ROWS], Places)
_HEADS: Final = types.NamedTuple(
    [_OWN_LINE, _NUMBER, _OWN_GROUPS, _OWN_ROWS, _OWN_ROWS, _OWN_GROUPS], HeadWeights
)
_LATENT: Final = types.NamedTuple(
    [
        *(_OWN_LINE, _NUMBER, _OWN_GROUPS, _OWN_LINE, _OWN_GROUPS),
        *(_OWN_GROUPS, _OWN_LINE, _NUMBER, _OWN_GROUPS, _OWN_GROUPS, _OWN_GROUPS),
    ],
    LatentArrays,
)
_ROUTER: Final = types.NamedTuple([_OWN_GROUPS, _OWN_LINE, _OWN_LINE], RouterArrays)
_CHOICE: Final = types.NamedTuple([_FLAG, _INT, _FLAG, _INT, _INT, _NUMBER, _NUMBER], ExpertChoice)
_GATE: Final = types.NamedUniTuple(_NUMBER, 3, Gate)
_EXPERTS: Final = types.NamedTuple([_OWN_GROUPS, _OWN_GROUPS, _OWN_ROWS], Experts)


@kept(_SOURCES, _INTS, _INTS, _INTS, _INT)
def lay_out(
    lengths: Int64s, firsts: Int64s, blocks: Int64s, block_tokens: int
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """See `attention_kernel.lay_out`."""
    return attention_kernel.lay_out(lengths, firsts, blocks, block_tokens)


@kept(_SOURCES, _GROUPS, _OWN_GROUPS)
def products_of_groups(x: Float32s, weights: Float32s) -> Float32s:
    """Multiply `x` [groups, rows, inner], or [1, rows, inner] for all, by `weights` [groups, inner,
    columns]: [groups, rows, columns].
    """
    groups, rows, inner = x.shape
    step = rows * inner if groups > 1 else 0
    return product_kernel.multiply_groups(x.reshape(-1), rows, inner, step, weights)


@kept(_SOURCES, _ROWS, _LINE, _NUMBER, _GROUPS, _INT)
def norm_and_project(
    x: Float32s, norm: Float32s, eps: float, panels: Float32s, columns: int
) -> Float32s:
    """The norm of `x` [rows, width] times a matrix in `panels_of`: [rows, columns]."""
    normed = attention_kernel.norm_rows(x, norm, np.float32(eps))
    return product_kernel.multiply_panels(normed, panels, columns)


@kept(_SOURCES, _ROWS, _LINE, _NUMBER)
def norm_rows(x: Float32s, weight: Float32s, eps: float) -> Float32s:
    """See `attention_kernel.norm_rows`."""
    return attention_kernel.norm_rows(x, weight, np.float32(eps))


@kept(_SOURCES, _ROWS, _CACHE, _HEADS, PLACES, SPANS, _SCORING)
def attend_heads(
    x: Float32s,
    cache: tuple[Float32s, Float32s],
    weights: HeadWeights,
    places: Places,
    spans: Spans,
    scoring: Scoring,
) -> Float32s:
    """See `attention_kernel.attend_heads`."""
    return attention_kernel.attend_heads(x, cache, weights, places, spans, scoring)


@kept(_SOURCES, _ROWS, _CACHE, _LATENT, PLACES, SPANS, _SCORING)
def attend_latent(
    x: Float32s,
    cache: tuple[Float32s, Float32s],
    weights: LatentArrays,
    places: Places,
    spans: Spans,
    scoring: Scoring,
) -> Float32s:
    """See `latent_kernel.attend_latent`."""
    return latent_kernel.attend_latent(x, cache, weights, places, spans, scoring)


@kept(_SOURCES, _ROWS, _LINE, _NUMBER, _ROWS, _ROWS)
def turn_shared(
    shared: Float32s, norm: Float32s, eps: float, cos: Float32s, sin: Float32s
) -> Float32s:
    """See `latent_kernel.turn_shared`."""
    return latent_kernel.turn_shared(shared, norm, eps, cos, sin)


@kept(_SOURCES, _GROUPS, _GROUPS, _ROWS, _ROWS)
def join_queries(query: Float32s, folded: Float32s, cos: Float32s, sin: Float32s) -> Float32s:
    """See `latent_kernel.join_queries`."""
    return latent_kernel.join_queries(query, folded, cos, sin)


@kept(_SOURCES, _GROUPS, _ROWS, _TURN)
def turn_heads(
    qkv: Float32s, bias: Float32s, turn: TurnedBy
) -> tuple[Float32s, Float32s, Float32s]:
    """See `attention_kernel.turn_heads`."""
    return attention_kernel.turn_heads(qkv, bias, turn)


@kept(_SOURCES, *_CACHE.types, _INTS, _GROUPS, _GROUPS)
def write_slots(
    cached_keys: Float32s, cached_values: Float32s, slots: Int64s, keys: Float32s, values: Float32s
) -> None:
    """See `attention_kernel.write_slots`."""
    attention_kernel.write_slots(cached_keys, cached_values, slots, keys, values)


@kept(_SOURCES, _GROUPS, _BLOCKS, _GROUPS, SPANS, _SCORING)
def attend(
    queries: Float32s, keys: Float32s, values: Float32s, spans: Spans, scoring: Scoring
) -> Float32s:
    """See `attention_kernel.attend`."""
    return attention_kernel.attend(queries, keys, values, spans, scoring)


@kept(_SOURCES, _ROWS, _GROUPS, _LINE)
def add_parts(residual: Float32s, addends: Float32s, bias: Float32s) -> Float32s:
    """See `feed_forward_kernel.add_parts`."""
    return feed_forward_kernel.add_parts(residual, addends, bias)


@kept(_SOURCES, _ROWS, _GROUPS, _LINE, _LINE, _NUMBER)
def join(
    residual: Float32s, addends: Float32s, bias: Float32s, norm: Float32s, eps: float
) -> tuple[Float32s, Float32s]:
    """See `feed_forward_kernel.join`."""
    return feed_forward_kernel.join(residual, addends, bias, norm, np.float32(eps))


@kept(_SOURCES, _ROWS, _ROUTER, _CHOICE)
def route(hidden: Float32s, router: RouterArrays, choice: ExpertChoice) -> tuple[Int64s, Float32s]:
    """See `feed_forward_kernel.route`."""
    return feed_forward_kernel.route(hidden, router, choice)


@kept(_SOURCES, _ROWS, _LINE, _LINE, _CHOICE)
def choose(
    logits: Float32s, bias: Float32s, choice_bias: Float32s, choice: ExpertChoice
) -> tuple[Int64s, Float32s]:
    """See `feed_forward_kernel.choose`."""
    return feed_forward_kernel.choose(logits, bias, choice_bias, choice)


@kept(_SOURCES, _ROWS, _INTS, _INTS, _EXPERTS, _GATE)
def expert_rows(
    rows: Float32s, row_of_pair: Int64s, counts: Int64s, experts: Experts, gate: Gate
) -> Float32s:
    """See `feed_forward_kernel.expert_rows`; IndexError for pairs without a row or an expert."""
    if counts.sum() != len(row_of_pair) or len(counts) > len(experts.down):
        raise IndexError("the experts' counts are not those of the pairs")
    for row in row_of_pair:
        if row < 0 or row >= len(rows):
            raise IndexError("a pair has a row that is not there")
    return feed_forward_kernel.expert_rows(rows, row_of_pair, counts, experts, gate)


@kept(_SOURCES, _ROWS, _GATE)
def gate_rows(both: Float32s, gate: Gate) -> Float32s:
    """See `feed_forward_kernel.gate_rows`."""
    return feed_forward_kernel.gate_rows(both, gate)


@kept(_SOURCES, _ROWS, _GROUPS, _ROWS)
def add_weighted(residual: Float32s, rows: Float32s, weights: Float32s) -> Float32s:
    """See `feed_forward_kernel.add_weighted`."""
    return feed_forward_kernel.add_weighted(residual, rows, weights)
