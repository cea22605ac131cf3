"""Attention over a paged context, compiled: each query row over the blocks of its keys.

A score's sum is by the key's elements, a weight's total by its position's lane, a value's sum by
position, each from first to last. So a token's result has the same bits alone, in a batch, in one
prefill or in several, with blocks of any size.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compiled import allocating, compiled, inlined
from emulator.compute.product_kernel import add_product, multiply_groups
from emulator.compute.vectors import (
    LANES,
    RowsAt,
    address,
    exponential,
    exponentials,
    largest,
    square_sum,
)

QUERY_HEADS: Final = 32
"""Heads of queries that are attended together, if a token has no more than that: their scores stay
in a core's cache."""


class Spans(NamedTuple):
    """New tokens of requests, span by span, in order, each of one request."""

    starts: Int64s  # [spans] each span's first token
    positions: Int64s  # [tokens]
    tables: Int64s  # [spans, table_blocks] the blocks of each span's context


@allocating
def lay_out(
    lengths: Int64s, firsts: Int64s, blocks: Int64s, block_tokens: int
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Lay out spans of `lengths` from positions `firsts` on, both [spans]; `blocks` are those of
    their contexts, one span's after the other's.

    Returns KV slots [tokens], and the fields of `Spans`; tables are padded with null blocks.
    """
    used = (firsts + lengths + block_tokens - 1) // block_tokens
    tokens = lengths.sum()
    slots, positions = np.empty(tokens, np.int64), np.empty(tokens, np.int64)
    starts = np.empty(len(lengths), np.int64)
    tables = np.zeros((len(lengths), used.max()), np.int64)
    token = block = 0
    for span in range(len(lengths)):
        starts[span] = token
        for place in range(used[span]):
            tables[span, place] = blocks[block]
            block += 1
        for position in range(firsts[span], firsts[span] + lengths[span]):
            positions[token] = position
            table_block = tables[span, position // block_tokens]
            slots[token] = table_block * block_tokens + position % block_tokens
            token += 1
    return slots, starts, positions, tables


class Scoring(NamedTuple):
    """How a layer's scores are made.

    Attributes:
        scale: factor of a query's product with a key.
        window: the last tokens that a token attends to, itself included; 0 for all.
        sinks: [heads] scores without a value, which take their share of the softmax; or [0].
    """

    scale: float
    window: int
    sinks: Float32s


class _QueryView(NamedTuple):
    """Queries that are attended together, and the keys in their view.

    Rows of queries in work are [kv_heads, queries, heads of a key head]; their scores are [rows,
    width] of the keys from position `begin` on.
    """

    first: int  # of the queries, in the batch
    queries: int
    kv_heads: int
    group: int  # heads of a key head
    begin: int
    last: int  # position
    width: int


class _Work(NamedTuple):
    """Arrays for the rows of a `_QueryView`."""

    scaled: Float32s  # [rows, key_dim]
    scores: Float32s  # [rows * width]
    totals: Float32s  # [rows]
    mixed: Float32s  # [rows, value_dim]


@allocating
def attend(
    queries: Float32s, keys: Float32s, values: Float32s, spans: Spans, scoring: Scoring
) -> Float32s:
    """Attend `queries` [tokens, heads, key_dim], causally: [tokens, heads, value_dim].

    `keys` [blocks, kv_heads, key_dim, block_tokens] and `values` [blocks, kv_heads, block_tokens *
    value_dim] have those of these tokens already.
    """
    tokens, heads, key_dim = queries.shape
    kv_heads, block_tokens = keys.shape[1], keys.shape[3]
    value_dim = values.shape[2] // block_tokens
    at_once = max(1, QUERY_HEADS // heads)  # queries
    step = max(block_tokens, LANES)
    longest = (spans.positions.max() // step + 1) * step
    work = _Work(
        np.empty((at_once * heads, key_dim), np.float32),
        np.empty(at_once * heads * longest, np.float32),
        np.empty(at_once * heads, np.float32),
        np.empty((at_once * heads, value_dim), np.float32),
    )
    out = np.empty((tokens, heads, value_dim), np.float32)
    for span in range(len(spans.starts)):
        end = spans.starts[span + 1] if span + 1 < len(spans.starts) else tokens
        for first in range(spans.starts[span], end, at_once):
            count = min(at_once, end - first)
            begin, last = 0, spans.positions[first + count - 1]
            if scoring.window:  # lanes are those of a position, wherever the view begins
                begin = max(0, spans.positions[first] + 1 - scoring.window) // step * step
            width = (last // step + 1) * step - begin
            view = _QueryView(first, count, kv_heads, heads // kv_heads, begin, last, width)
            _score(queries, keys, spans.tables[span], np.float32(scoring.scale), view, work)
            _weigh(spans.positions, scoring, view, work)
            _mix(values, spans.tables[span], view, work)
            _share(view, work, out)
    return out


@compiled
def _score(
    queries: Float32s,
    keys: Float32s,
    table: Int64s,
    scale: np.float32,
    view: _QueryView,
    work: _Work,
) -> None:
    """Multiply queries, times `scale`, by the keys in view."""
    _, kv_heads, key_dim, block_tokens = keys.shape
    rows = view.queries * view.group
    row = 0
    for head in range(kv_heads):
        for query in range(view.first, view.first + view.queries):
            for member in range(view.group):
                for place in range(key_dim):
                    number = queries[query, head * view.group + member, place]
                    work.scaled[row, place] = number * scale
                row += 1
    for place in range(row * view.width):
        work.scores[place] = 0.0
    for block in range(view.begin // block_tokens, view.last // block_tokens + 1):
        for head in range(kv_heads):
            place = head * rows * view.width + block * block_tokens - view.begin
            to = RowsAt(address(work.scores, place), view.width)
            by = RowsAt(address(work.scaled, head * rows * key_dim), key_dim)
            own = address(keys, (table[block] * kv_heads + head) * key_dim * block_tokens)
            add_product(to, by, rows, own, key_dim, block_tokens)


@compiled
def _weigh(positions: Int64s, scoring: Scoring, view: _QueryView, work: _Work) -> None:
    """Turn scores into weights, 0 of keys that a query does not see, and add them up."""
    row = 0
    for head in range(view.kv_heads):
        for query in range(view.first, view.first + view.queries):
            stop = positions[query] + 1 - view.begin
            start = max(0, stop - scoring.window) if scoring.window else 0
            for member in range(view.group):
                first = row * view.width
                for place in range(start):
                    work.scores[first + place] = -np.inf
                most, sink = largest(work.scores, first, stop), np.float32(-np.inf)
                if len(scoring.sinks):
                    sink = scoring.sinks[head * view.group + member]
                    most = max(most, sink)
                total = exponentials(work.scores, first, stop, most)
                work.totals[row] = total + exponential(sink - most)
                for place in range(stop, view.width):
                    work.scores[first + place] = 0.0
                row += 1


@compiled
def _mix(values: Float32s, table: Int64s, view: _QueryView, work: _Work) -> None:
    """Add up the values in view by their weights."""
    _, kv_heads, numbers = values.shape
    value_dim = work.mixed.shape[1]
    block_tokens = numbers // value_dim
    rows = view.queries * view.group
    for row in range(kv_heads * rows):
        for place in range(value_dim):
            work.mixed[row, place] = 0.0
    for block in range(view.begin // block_tokens, view.last // block_tokens + 1):
        seen = min(block_tokens, view.last + 1 - block * block_tokens)
        for head in range(kv_heads):  # whose sums do not wait for each other
            to = RowsAt(address(work.mixed, head * rows * value_dim), value_dim)
            place = head * rows * view.width + block * block_tokens - view.begin
            by = RowsAt(address(work.scores, place), view.width)
            own = address(values, (table[block] * kv_heads + head) * numbers)
            add_product(to, by, rows, own, seen, value_dim)


@compiled
def _share(view: _QueryView, work: _Work, out: Float32s) -> None:
    """Divide the sums of values by those of their weights: to `out`."""
    row = 0
    for head in range(view.kv_heads):
        for query in range(view.first, view.first + view.queries):
            for member in range(view.group):
                share = np.float32(1.0) / work.totals[row]
                for place in range(out.shape[2]):
                    number = work.mixed[row, place] * share
                    out[query, head * view.group + member, place] = number
                row += 1


class HeadWeights(NamedTuple):
    """A layer's attention; see `GroupedQueryWeights`. What a model does not have is [0, 0]."""

    input_norm: Float32s  # [hidden]
    eps: float  # of all norms
    qkv: Float32s  # [groups, hidden, (group_heads + 2) * head_dim]
    bias: Float32s  # [groups, columns of qkv]
    norms: Float32s  # [group_heads + 1, head_dim]
    output: Float32s  # [groups, group_heads * head_dim, hidden]


class Places(NamedTuple):
    """Where new tokens are."""

    slots: Int64s  # [tokens] of the KV cache
    cos: Float32s  # [tokens, head_dim / 2]
    sin: Float32s  # [tokens, head_dim / 2]


@allocating
def attend_heads(
    x: Float32s,
    cache: tuple[Float32s, Float32s],
    weights: HeadWeights,
    places: Places,
    spans: Spans,
    scoring: Scoring,
) -> Float32s:
    """Attend `x` [tokens, hidden] over head groups, writing the `cache` of `attend`'s keys and
    values: each group's addend to the residual, [groups, tokens, hidden].
    """
    tokens, hidden = x.shape
    keys, values = cache
    normed = norm_rows(x, weights.input_norm, np.float32(weights.eps))
    qkv = multiply_groups(normed.reshape(-1), tokens, hidden, 0, weights.qkv)
    turn = TurnedBy(weights.norms, weights.eps, places.cos, places.sin)
    queries, new_keys, new_values = turn_heads(qkv, weights.bias, turn)
    write_slots(keys, values, places.slots, new_keys, new_values)
    mixed = attend(queries, keys, values, spans, scoring)
    group_width = weights.output.shape[1]
    row_width = len(weights.output) * group_width
    return multiply_groups(mixed.reshape(-1), tokens, row_width, group_width, weights.output)


class TurnedBy(NamedTuple):
    """What queries and keys are normalised and rotated by.

    Attributes:
        norms: [group_heads + 1, head_dim], the queries' and the key's; or [0, 0].
        eps: of the norms.
        cos: [tokens, head_dim / 2], as `sin`.
    """

    norms: Float32s
    eps: float
    cos: Float32s
    sin: Float32s


@allocating
def turn_heads(
    qkv: Float32s, bias: Float32s, turn: TurnedBy
) -> tuple[Float32s, Float32s, Float32s]:
    """Add `bias` [groups, columns], or [0, 0], to products `qkv` [groups, tokens, (group_heads + 2)
    * head_dim], normalise and rotate queries and keys.

    Returns queries [tokens, groups * group_heads, head_dim], and keys and values [tokens, groups,
    head_dim].
    """
    groups, tokens, columns = qkv.shape
    head_dim = 2 * turn.cos.shape[1]
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
            for head in range(group_heads):
                own = line[head * head_dim : (head + 1) * head_dim]
                _turn_head(own, turn, head, token, queries[token, group * group_heads + head])
            own = line[group_heads * head_dim : (group_heads + 1) * head_dim]
            _turn_head(own, turn, group_heads, token, keys[token, group])
            for place in range(head_dim):
                values[token, group, place] = line[(group_heads + 1) * head_dim + place]
    return queries, keys, values


@compiled
def _turn_head(own: Float32s, turn: TurnedBy, head: int, token: int, out: Float32s) -> None:
    """Normalise `own` [head_dim] in place, and rotate it: to `out`."""
    if len(turn.norms):
        normalise(own, own, turn.norms[head], np.float32(turn.eps))
    turn_pairs(own, out, turn.cos[token], turn.sin[token])


@inlined
def turn_pairs(x: Float32s, out: Float32s, cos: Float32s, sin: Float32s) -> None:
    """Rotate `x` [2 * pairs], whose halves are pairs, by `cos` and `sin` [pairs]: to `out`."""
    half = len(cos)
    for place in range(half):
        one, other = x[place], x[half + place]
        out[place] = one * cos[place] - other * sin[place]
        out[half + place] = other * cos[place] + one * sin[place]


@inlined
def normalise(x: Float32s, out: Float32s, weight: Float32s, eps: np.float32) -> None:
    """Write x / sqrt(mean(x^2) + eps) * weight [width] to `out`."""
    width = len(weight)
    mean = square_sum(x, 0, width) * np.float32(1.0 / width)
    factor = np.float32(1.0) / np.sqrt(mean + eps)
    for place in range(width):
        out[place] = x[place] * factor * weight[place]


@allocating
def norm_rows(x: Float32s, weight: Float32s, eps: np.float32) -> Float32s:
    """`normalise` of each row of `x` [rows, width]; same shape."""
    out = np.empty(x.shape, np.float32)
    for row in range(len(x)):
        normalise(x[row], out[row], weight, eps)
    return out


@compiled
def write_slots(
    cached_keys: Float32s, cached_values: Float32s, slots: Int64s, keys: Float32s, values: Float32s
) -> None:
    """Store `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] at
    `slots` [tokens] of a layer's cache; see `PagedKv`.
    """
    _, kv_heads, key_dim, block_tokens = cached_keys.shape
    value_dim = values.shape[2]
    for token in range(len(slots)):
        block, offset = slots[token] // block_tokens, slots[token] % block_tokens
        for head in range(kv_heads):
            for place in range(key_dim):
                cached_keys[block, head, place, offset] = keys[token, head, place]
            for place in range(value_dim):
                cached_values[block, head, offset * value_dim + place] = values[token, head, place]
