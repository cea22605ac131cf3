"""Multi-head latent attention, compiled: the products of `latent` and what is between them.

A token's key is its latent and one rotated part, [kv_rank + rope_dim], for all heads; its value is
the latent. Sums have the order of the shared kernels, so a token's bits are those of the steps one
by one.
"""

from typing import NamedTuple

import numpy as np

from emulator.arrays import Float32s
from emulator.compiled import allocating
from emulator.compute.attention_kernel import (
    Places,
    Scoring,
    Spans,
    attend,
    norm_rows,
    normalise,
    turn_pairs,
    write_slots,
)
from emulator.compute.product_kernel import multiply_groups


class LatentArrays(NamedTuple):
    """A layer's latent attention on one chip; see `LatentWeights`."""

    input_norm: Float32s  # [hidden]
    eps: float  # of it
    query_down: Float32s  # [1, hidden, query_rank]
    query_norm: Float32s  # [query_rank]
    query_up: Float32s  # [groups, query_rank, group_heads * (nope_dim + rope_dim)]
    kv_down: Float32s  # [1, hidden, kv_rank + rope_dim]
    kv_norm: Float32s  # [kv_rank]
    latent_eps: float  # of the two norms of latents
    key_up: Float32s  # [heads, nope_dim, kv_rank]
    value_up: Float32s  # [heads, kv_rank, value_dim]
    output: Float32s  # [groups, group_heads * value_dim, hidden]


@allocating
def attend_latent(
    x: Float32s,
    cache: tuple[Float32s, Float32s],
    weights: LatentArrays,
    places: Places,
    spans: Spans,
    scoring: Scoring,
) -> Float32s:
    """Attend `x` [tokens, hidden] over head groups, writing the `cache` of `attend`'s keys and
    values: each group's addend to the residual, [groups, tokens, hidden].
    """
    tokens, hidden = x.shape
    keys, values = cache
    groups, query_rank, columns = weights.query_up.shape
    heads, _, kv_rank = weights.key_up.shape
    group_heads = heads // groups
    width, value_dim = columns // group_heads, weights.value_up.shape[2]
    normed = norm_rows(x, weights.input_norm, np.float32(weights.eps)).reshape(-1)
    down = multiply_groups(normed, tokens, hidden, 0, weights.query_down)[0]
    down = norm_rows(down, weights.query_norm, np.float32(weights.latent_eps)).reshape(-1)
    query = multiply_groups(down, tokens, query_rank, 0, weights.query_up)
    shared = multiply_groups(normed, tokens, hidden, 0, weights.kv_down)[0]
    own = turn_shared(shared, weights.kv_norm, weights.latent_eps, places.cos, places.sin)
    write_slots(keys, values, places.slots, own, own[:, :, :kv_rank])
    folded = np.empty((heads, tokens, kv_rank), np.float32)
    for group in range(groups):
        part = slice(group * group_heads, (group + 1) * group_heads)
        of_group = query[group].reshape(-1)
        folded[part] = multiply_groups(of_group, tokens, columns, width, weights.key_up[part])
    queries = join_queries(query, folded, places.cos, places.sin)
    mixed = attend(queries, keys, values, spans, scoring).reshape(-1)
    valued = multiply_groups(mixed, tokens, heads * kv_rank, kv_rank, weights.value_up)
    rows = np.empty((tokens, heads * value_dim), np.float32)
    for head in range(heads):
        for token in range(tokens):
            for place in range(value_dim):
                rows[token, head * value_dim + place] = valued[head, token, place]
    group_width = group_heads * value_dim
    row_width = heads * value_dim
    return multiply_groups(rows.reshape(-1), tokens, row_width, group_width, weights.output)


@allocating
def turn_shared(
    shared: Float32s, norm: Float32s, eps: float, cos: Float32s, sin: Float32s
) -> Float32s:
    """The keys of `shared` [tokens, kv_rank + rope_dim]: the latent by its `norm`, the rest rotated
    by `cos` and `sin` [tokens, rope_dim / 2]; [tokens, 1, kv_rank + rope_dim].
    """
    tokens, width = shared.shape
    kv_rank = len(norm)
    keys = np.empty((tokens, 1, width), np.float32)
    for token in range(tokens):
        own = keys[token, 0]
        normalise(shared[token], own, norm, np.float32(eps))
        turn_pairs(shared[token, kv_rank:], own[kv_rank:], cos[token], sin[token])
    return keys


@allocating
def join_queries(query: Float32s, folded: Float32s, cos: Float32s, sin: Float32s) -> Float32s:
    """Queries of the latent, `folded` [heads, tokens, kv_rank], each beside its rotated part: of
    `query` [groups, tokens, group_heads * (nope_dim + rope_dim)] by `cos` and `sin` [tokens,
    rope_dim / 2]. Returns [tokens, heads, kv_rank + rope_dim].
    """
    groups, tokens, columns = query.shape
    heads, _, kv_rank = folded.shape
    width, rope_dim = columns * groups // heads, 2 * cos.shape[1]
    queries = np.empty((tokens, heads, kv_rank + rope_dim), np.float32)
    for head in range(heads):
        group, member = head // (heads // groups), head % (heads // groups)
        first = (member + 1) * width - rope_dim
        for token in range(tokens):
            own = queries[token, head]
            for place in range(kv_rank):
                own[place] = folded[head, token, place]
            turning = query[group, token, first : first + rope_dim]
            turn_pairs(turning, own[kv_rank:], cos[token], sin[token])
    return queries
