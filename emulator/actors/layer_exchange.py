"""What of the exchange a chip calls from Python: all layers, or what goes between two kernels.

An array that is an argument may be one that is not to be written, as in `layer_kernel`.
"""

# mypy: no-disallow-untyped-calls
# Numba's types have none.

from typing import Final

import numpy as np
from numba import types

from emulator.actors import exchange_kernel
from emulator.actors.barrier_kernel import DONE
from emulator.actors.exchange_kernel import RankPlace, Work
from emulator.arrays import Float32s, Int64s
from emulator.compiled import allocating, given, kept, sources_of
from emulator.compute import (
    attention_kernel,
    feed_forward_kernel,
    layer_table,
    product_kernel,
)
from emulator.compute.attention_kernel import Places, Spans
from emulator.compute.feed_forward_kernel import Experts, Gate
from emulator.compute.layer_kernel import PLACES, POOLS, SPANS
from emulator.compute.layer_table import (
    TABLE,
    ExpertLayer,
    LayerTable,
    experts_of,
    gate_of,
    layer_of,
)

_EXCHANGE: Final = (*exchange_kernel.PARTS, exchange_kernel)
_SOURCES: Final = sources_of(*_EXCHANGE)
_LAYER_SOURCES: Final = sources_of(
    *_EXCHANGE, product_kernel, attention_kernel, feed_forward_kernel, layer_table
)

_INT: Final = types.int64
_INTS: Final = given(_INT, 1)
_HANDLE: Final = given(_INT, 2)
_ROWS: Final = given(types.float32, 2)
_RANK: Final = types.NamedUniTuple(_INT, len(RankPlace._fields), RankPlace)


@kept(_SOURCES, _HANDLE, _INT, _INT, _ROWS, given(_INT, 2), types.boolean)
def collect(
    at: Int64s, chip: int, layer: int, hidden: Float32s, chosen: Int64s, sends: bool
) -> Work:
    """See `exchange_kernel.collect`."""
    return exchange_kernel.collect(at, chip, layer, hidden, chosen, sends)


@kept(_SOURCES, _HANDLE, _INT, _INT, _ROWS, _INTS, types.boolean)
def answer(
    at: Int64s, chip: int, layer: int, rows: Float32s, answer_of_pair: Int64s, waits: bool
) -> int:
    """See `exchange_kernel.answer`."""
    return exchange_kernel.answer(at, chip, layer, rows, answer_of_pair, waits)


@kept(_SOURCES, _HANDLE, _RANK, given(types.float32, 3))
def add_sums(at: Int64s, rank: RankPlace, mine: Float32s) -> tuple[int, Float32s]:
    """See `exchange_kernel.add_sums`."""
    return exchange_kernel.add_sums(at, rank, mine)


@kept(_LAYER_SOURCES, _HANDLE, _INT, TABLE)
def run_experts(at: Int64s, chip: int, table: LayerTable) -> int:
    """Compute a chip's experts in all layers of a step in which it has no tokens.

    Returns an outcome.
    """
    nothing = np.empty((0, 0), dtype=np.float32)
    none = np.empty((0, 0), dtype=np.int64)
    for layer in range(len(table.arrays)):
        work = exchange_kernel.collect(at, chip, layer, nothing, none, False)
        outcome = work[0]
        if outcome == DONE:
            out = _expert_rows(work, experts_of(table, layer), gate_of(table, layer))
            outcome = exchange_kernel.answer(at, chip, layer, out, work[4], False)
        if outcome != DONE:
            return outcome
    return DONE


@allocating
def _expert_rows(work: Work, experts: Experts, gate: Gate) -> Float32s:
    return feed_forward_kernel.expert_rows(work[1], work[2], work[3], experts, gate)


@kept(_LAYER_SOURCES, _HANDLE, _RANK, _ROWS, TABLE, *POOLS.types, PLACES, SPANS)
def run_layers(
    at: Int64s,
    rank: RankPlace,
    x: Float32s,
    table: LayerTable,
    keys: Float32s,
    values: Float32s,
    places: Places,
    spans: Spans,
) -> tuple[int, Float32s]:
    """Compute all layers of a step with the other chips, from their input `x` [tokens, hidden].

    `keys` and `values` are the KV cache's. Returns an outcome and the last one's output, of the
    shape of `x`.
    """
    outcome, x = DONE, x.copy()
    for layer in range(len(table.arrays)):
        outcome, x = _run_layer(
            at,
            layer,
            RankPlace(rank.lead, rank.place, rank.chips, rank.groups, rank.added + layer),
            x,
            layer_of(table, layer),
            (keys[layer], values[layer]),
            places,
            spans,
        )
        if outcome != DONE:
            break
    return outcome, x


@allocating
def _run_layer(
    at: Int64s,
    number: int,
    rank: RankPlace,
    x: Float32s,
    layer: ExpertLayer,
    cache: tuple[Float32s, Float32s],
    places: Places,
    spans: Spans,
) -> tuple[int, Float32s]:
    """Compute layer `number` from its input `x` to the next one's: an outcome and that."""
    heads, chip = layer.heads, rank.lead + rank.place
    addends = attention_kernel.attend_heads(x, cache, heads, places, spans, layer.scoring)
    outcome = DONE
    if rank.chips > 1:
        outcome, addends = exchange_kernel.add_sums(at, rank, addends)
    if outcome != DONE:
        return outcome, x
    eps = np.float32(heads.eps)
    residual, hidden = feed_forward_kernel.join(x, addends, layer.output_bias, layer.post_norm, eps)
    chosen, weights = feed_forward_kernel.route(hidden, layer.router, layer.choice)
    areas = exchange_kernel.areas_of(at)
    first = areas.first_token[rank.lead]
    own, end = areas.first_token[chip] - first, areas.first_token[chip + 1] - first
    work = exchange_kernel.collect(at, chip, number, hidden[own:end], chosen[own:end], True)
    outcome = work[0]
    if outcome == DONE:
        out = _expert_rows(work, layer.experts, layer.gate)
        outcome = exchange_kernel.answer(at, chip, number, out, work[4], True)
    if outcome != DONE:
        return outcome, x
    tokens, k = chosen.shape
    answers = areas.answers[first * k : (first + tokens) * k].reshape(tokens, k, x.shape[1])
    return DONE, feed_forward_kernel.add_weighted(residual, answers, weights)
