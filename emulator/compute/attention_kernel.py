"""Attention over a paged context, compiled: each query row over the blocks of its keys.

A score's sum is by the key's elements, a weight's total by its position's lane, a value's sum by
position, each from first to last. So a token's result has the same bits alone, in a batch, in one
prefill or in several, with blocks of any size.
"""

from typing import Final

import numpy as np
from numba import types

from emulator.arrays import Float32s, Int64s
from emulator.compiled import compiled, given, inlined, kept, sources_of
from emulator.compute import product_kernel, vectors
from emulator.compute.product_kernel import add_product
from emulator.compute.vectors import (
    LANES,
    address,
    exponential,
    exponentials,
    largest,
    square_sum,
)

QUERY_ROWS: Final = 32
"""Heads of queries that are attended together, if a token has no more than that: their scores stay
in a core's cache."""

_FLOAT, _INT = types.float32, types.int64
_FLOATS: Final = [given(_FLOAT, dimensions) for dimensions in range(5)]
_INTS: Final = [given(_INT, dimensions) for dimensions in range(3)]
_SOURCES: Final = sources_of(vectors, product_kernel)


@kept(
    _SOURCES,
    *(_FLOATS[3], _FLOATS[4], _FLOATS[3], _INTS[1], _INTS[1], _INTS[2]),
    *(_FLOAT, _INT, _FLOATS[1]),
)
def attend(
    queries: Float32s,
    keys: Float32s,
    values: Float32s,
    starts: Int64s,
    positions: Int64s,
    tables: Int64s,
    scale: float,
    window: int,
    sinks: Float32s,
) -> Float32s:
    """Attend `queries` [tokens, heads, key_dim], causally: [tokens, heads, value_dim].

    Args:
        queries: of spans one after the other, the tokens of a span in order.
        keys: [kv_heads, blocks, key_dim, block_tokens], those of these tokens included.
        values: [kv_heads, blocks, block_tokens * value_dim].
        starts: [spans] each span's first token.
        positions: [tokens].
        tables: [spans, table_blocks].
        scale: factor of a query's product with a key.
        window: the last tokens that a token attends to, itself included; 0 for all.
        sinks: [heads] scores without a value, which take their share of the softmax; or [0].
    """
    tokens, heads, key_dim = queries.shape
    kv_heads, block_tokens = keys.shape[0], keys.shape[3]
    value_dim = values.shape[2] // block_tokens
    at_once = max(1, QUERY_ROWS // heads)  # queries
    step = max(block_tokens, LANES)
    longest = (positions.max() // step + 1) * step
    scaled = np.empty((at_once * heads, key_dim), np.float32)
    scores = np.empty(at_once * heads * longest, np.float32)
    mixed = np.empty((at_once * heads, value_dim), np.float32)
    totals = np.empty(at_once * heads, np.float32)
    out = np.empty((tokens, heads, value_dim), np.float32)
    for span in range(len(starts)):
        end = starts[span + 1] if span + 1 < len(starts) else tokens
        for first in range(starts[span], end, at_once):
            count = min(at_once, end - first)
            # Lanes are those of a position, wherever the keys in view begin.
            begin = max(0, positions[first] + 1 - window) // step * step if window else 0
            last = positions[first + count - 1]
            width = (last // step + 1) * step - begin
            _lay_queries(queries, first, count, kv_heads, scale, scaled)
            rows = count * heads
            _score(scaled, keys, tables[span], begin, last, width, rows, scores)
            _weigh(
                *(scores, positions, first, count, begin, width),
                *(window, sinks, kv_heads, rows, totals),
            )
            _mix(scores, values, tables[span], begin, last, width, rows, mixed)
            _share(mixed, totals, first, count, kv_heads, out)
    return out


# Rows of queries in work are [kv_heads, queries, heads of a key head].


@compiled
def _lay_queries(
    queries: Float32s, first: int, count: int, kv_heads: int, scale: float, scaled: Float32s
) -> None:
    """Lay out `count` queries from `first` on, times `scale`: to `scaled` [rows, key_dim]."""
    group = queries.shape[1] // kv_heads
    for query in range(count):
        for head in range(queries.shape[1]):
            row = (head // group * count + query) * group + head % group
            for place in range(queries.shape[2]):
                scaled[row, place] = queries[first + query, head, place] * scale


@compiled
def _score(
    scaled: Float32s,
    keys: Float32s,
    table: Int64s,
    begin: int,
    last: int,
    width: int,
    rows: int,
    scores: Float32s,
) -> None:
    """Multiply queries by the keys of positions `begin` to `last`: `scores` [rows, width]."""
    kv_heads, blocks, key_dim, block_tokens = keys.shape
    each = rows // kv_heads
    for place in range(rows * width):
        scores[place] = 0.0
    for block in range(begin // block_tokens, last // block_tokens + 1):
        for head in range(kv_heads):
            row = head * each
            add_product(
                *(address(scores, row * width + block * block_tokens - begin), width),
                *(address(scaled, row * key_dim), key_dim, each),
                address(keys, (head * blocks + table[block]) * key_dim * block_tokens),
                *(key_dim, block_tokens),
            )


@compiled
def _weigh(
    scores: Float32s,
    positions: Int64s,
    first: int,
    count: int,
    begin: int,
    width: int,
    window: int,
    sinks: Float32s,
    kv_heads: int,
    rows: int,
    totals: Float32s,
) -> None:
    """Turn `scores` [rows, width] of keys from `begin` on into weights, 0 of those that a query
    does not see; their `totals` [rows].
    """
    group = rows // (kv_heads * count)
    for row in range(rows):
        query = row // group % count
        position = positions[first + query]
        start = max(0, position + 1 - window - begin) if window else 0
        stop = position + 1 - begin
        for place in range(start):
            scores[row * width + place] = -np.inf
        most = largest(scores, row * width, stop)
        sink = np.float32(-np.inf)
        if len(sinks):
            sink = sinks[row // (group * count) * group + row % group]
            most = max(most, sink)
        totals[row] = exponentials(scores, row * width, stop, most) + exponential(sink - most)
        for place in range(stop, width):
            scores[row * width + place] = 0.0


@compiled
def _mix(
    weights: Float32s,
    values: Float32s,
    table: Int64s,
    begin: int,
    last: int,
    width: int,
    rows: int,
    mixed: Float32s,
) -> None:
    """Add up values by `weights` [rows, width] of positions `begin` to `last`: `mixed` [rows,
    value_dim].
    """
    kv_heads, blocks, row_numbers = values.shape
    value_dim = mixed.shape[1]
    block_tokens = row_numbers // value_dim
    each = rows // kv_heads
    for row in range(rows):
        for place in range(value_dim):
            mixed[row, place] = 0.0
    for block in range(begin // block_tokens, last // block_tokens + 1):
        seen = min(block_tokens, last + 1 - block * block_tokens)
        for head in range(kv_heads):  # whose sums do not wait for each other
            row = head * each
            add_product(
                *(address(mixed, row * value_dim), value_dim),
                *(address(weights, row * width + block * block_tokens - begin), width, each),
                address(values, (head * blocks + table[block]) * row_numbers),
                *(seen, value_dim),
            )


@compiled
def _share(
    mixed: Float32s, totals: Float32s, first: int, count: int, kv_heads: int, out: Float32s
) -> None:
    """Divide the sums `mixed` [rows, value_dim] by the weights' `totals` [rows], to `out`."""
    group = out.shape[1] // kv_heads
    for query in range(count):
        for head in range(out.shape[1]):
            row = (head // group * count + query) * group + head % group
            share = np.float32(1.0) / totals[row]
            for place in range(out.shape[2]):
                out[first + query, head, place] = mixed[row, place] * share


@kept(
    _SOURCES,
    *(_FLOATS[3], _FLOATS[2], _FLOATS[2], _FLOAT, _FLOATS[2], _FLOATS[2]),
)
def turn_heads(
    qkv: Float32s,
    bias: Float32s,
    norms: Float32s,
    eps: float,
    cos: Float32s,
    sin: Float32s,
) -> tuple[Float32s, Float32s, Float32s]:
    """Add biases to products `qkv` [groups, tokens, (group_heads + 2) * head_dim], normalise and
    rotate queries and keys.

    `bias` is [groups, columns], `norms` [group_heads + 1, head_dim], both [0, 0] where there are
    none; `cos` and `sin` [tokens, head_dim / 2]. Returns queries [tokens, groups * group_heads,
    head_dim], and keys and values [tokens, groups, head_dim].
    """
    groups, tokens, columns = qkv.shape
    half = cos.shape[1]
    head_dim = 2 * half
    group_heads = columns // head_dim - 2
    queries = np.empty((tokens, groups * group_heads, head_dim), np.float32)
    keys = np.empty((tokens, groups, head_dim), np.float32)
    values = np.empty((tokens, groups, head_dim), np.float32)
    line = np.empty(columns, np.float32)
    for group in range(groups):
        for token in range(tokens):
            for place in range(columns):
                line[place] = qkv[group, token, place]
            if len(bias):
                for place in range(columns):
                    line[place] += bias[group, place]
            for head in range(group_heads + 1):
                own = line[head * head_dim : (head + 1) * head_dim]
                if len(norms):
                    normalise(own, own, norms[head], eps)
                if head < group_heads:
                    turned = queries[token, group * group_heads + head]
                else:
                    turned = keys[token, group]
                for place in range(half):
                    one, other = own[place], own[half + place]
                    turn, lean = cos[token, place], sin[token, place]
                    turned[place] = one * turn - other * lean
                    turned[half + place] = other * turn + one * lean
            for place in range(head_dim):
                values[token, group, place] = line[(group_heads + 1) * head_dim + place]
    return queries, keys, values


@inlined
def normalise(x: Float32s, out: Float32s, weight: Float32s, eps: float) -> None:
    """Write x / sqrt(mean(x^2) + eps) * weight [width] to `out`."""
    width = len(weight)
    mean = square_sum(x, 0, width) * np.float32(1.0 / width)
    factor = np.float32(1.0) / np.sqrt(mean + eps)
    for place in range(width):
        out[place] = x[place] * factor * weight[place]


@kept(_SOURCES, _FLOATS[2], _FLOATS[1], _FLOAT)
def norm_rows(x: Float32s, weight: Float32s, eps: float) -> Float32s:
    """`normalise` of each row of `x` [rows, width]; same shape."""
    out = np.empty(x.shape, np.float32)
    for row in range(len(x)):
        normalise(x[row], out[row], weight, eps)
    return out


@kept(_SOURCES, types.float32[:, :, :, ::1], types.float32[:, :, ::1], _INTS[1], _FLOATS[3], _FLOATS[3])
def write_slots(
    cached_keys: Float32s, cached_values: Float32s, slots: Int64s, keys: Float32s, values: Float32s
) -> None:
    """Store `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] at
    `slots` [tokens] of a layer's cache; see `PagedKv`.
    """
    kv_heads, _, key_dim, block_tokens = cached_keys.shape
    value_dim = values.shape[2]
    for token in range(len(slots)):
        block, offset = slots[token] // block_tokens, slots[token] % block_tokens
        for head in range(kv_heads):
            for place in range(key_dim):
                cached_keys[head, block, place, offset] = keys[token, head, place]
            for place in range(value_dim):
                cached_values[head, block, offset * value_dim + place] = values[token, head, place]
