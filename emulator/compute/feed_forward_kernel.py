"""Feed-forward networks of a layer, compiled: the sum before them, routers, experts, dense parts.

A row's bits depend on no other row, nor on which experts and parts a chip has beside its own.
"""

from typing import Final

import numpy as np
from numba import types

from emulator.arrays import Float32s, Int64s
from emulator.compiled import compiled, given, inlined, kept, sources_of
from emulator.compute import attention_kernel, product_kernel, vectors
from emulator.compute.attention_kernel import normalise
from emulator.compute.product_kernel import add_product
from emulator.compute.vectors import address, copy_numbers, exponential

_TILE: Final = 4
_NONE: Final = -1

_FLOAT, _INT, _BOOL = types.float32, types.int64, types.boolean
_FLOATS: Final = [given(_FLOAT, dimensions) for dimensions in range(4)]
_INTS: Final = given(_INT, 1)
_SOURCES: Final = sources_of(vectors, product_kernel, attention_kernel)


@kept(_SOURCES, _FLOATS[2], _FLOATS[3], _FLOATS[1])
def add_parts(residual: Float32s, addends: Float32s, bias: Float32s) -> Float32s:
    """Add the sum of `addends` [parts, rows, width], first to last, to `residual` [rows, width],
    and then `bias` [width], or [0].
    """
    rows, width = residual.shape
    out = np.empty((rows, width), np.float32)
    for row in range(rows):
        for place in range(width):
            out[row, place] = addends[0, row, place]
        for part in range(1, len(addends)):
            for place in range(width):
                out[row, place] += addends[part, row, place]
        for place in range(width):
            out[row, place] = residual[row, place] + out[row, place]
        for place in range(len(bias)):
            out[row, place] += bias[place]
    return out


@kept(_SOURCES, _FLOATS[2], _FLOATS[3], _FLOATS[2])
def add_weighted(residual: Float32s, rows: Float32s, weights: Float32s) -> Float32s:
    """Add to `residual` [tokens, width] the sum over k of `rows` [tokens, k, width] times `weights`
    [tokens, k], first to last.
    """
    tokens, count, width = rows.shape
    out = np.zeros((tokens, width), np.float32)
    for token in range(tokens):
        for choice in range(count):
            weight = weights[token, choice]
            for place in range(width):
                out[token, place] += rows[token, choice, place] * weight
        for place in range(width):
            out[token, place] = residual[token, place] + out[token, place]
    return out


@inlined
def _gate_row(
    both: Float32s, out: Float32s, alpha: float, shift: float, limit: float
) -> None:
    """SwiGLU of `both` [2 * width], gate numbers first: to `out` [width]; see `SwiGlu`."""
    width = len(out)
    for place in range(width):
        opened, up = both[place], both[width + place]
        opened, up = min(opened, limit), max(min(up, limit), -limit)
        out[place] = opened / (np.float32(1.0) + exponential(-alpha * opened)) * (up + shift)


@kept(_SOURCES, _FLOATS[2], _FLOAT, _FLOAT, _FLOAT)
def gate_rows(both: Float32s, alpha: float, shift: float, limit: float) -> Float32s:
    """`both` [rows, 2 * width], gate columns first, gated: [rows, width]; see `SwiGlu`."""
    out = np.empty((len(both), both.shape[1] // 2), np.float32)
    for row in range(len(both)):
        _gate_row(both[row], out[row], alpha, shift, limit)
    return out


@kept(
    _SOURCES,
    *(_FLOATS[2], _INTS, _INTS, _FLOATS[3], _FLOATS[3], _FLOATS[2]),
    *(_FLOAT, _FLOAT, _FLOAT),
)
def expert_rows(
    rows: Float32s,
    row_of_pair: Int64s,
    counts: Int64s,
    gate_up: Float32s,
    down: Float32s,
    biases: Float32s,
    alpha: float,
    shift: float,
    limit: float,
) -> Float32s:
    """Apply each expert to its pairs; returns [pairs, hidden], unweighted.

    Args:
        rows: [rows, hidden].
        row_of_pair: [pairs], sorted by local expert.
        counts: [local_experts] pairs of each expert; adds up to pairs.
        gate_up: [local_experts, hidden, 2 * intermediate], gate columns first.
        down: [local_experts, intermediate, hidden].
        biases: [local_experts, 2 * intermediate + hidden], of both products; or [0, 0].
        alpha: of the gate, as `shift` and `limit`; see `SwiGlu`.
    """
    hidden, width = gate_up.shape[1:]
    out = np.zeros((len(row_of_pair), hidden), np.float32)
    x = np.empty((_TILE, hidden), np.float32)
    both = np.empty((_TILE, width), np.float32)
    opened = np.empty((_TILE, width // 2), np.float32)
    end = 0
    for expert in range(len(counts)):
        first, end = end, end + counts[expert]
        for pair in range(first, end, _TILE):
            chosen = row_of_pair[pair : min(pair + _TILE, end)]
            _run_expert(
                *(rows, chosen, expert, gate_up, down, biases, alpha, shift, limit),
                *(x, both, opened, out, pair),
            )
    return out


@compiled
def _run_expert(
    rows: Float32s,
    chosen: Int64s,
    expert: int,
    gate_up: Float32s,
    down: Float32s,
    biases: Float32s,
    alpha: float,
    shift: float,
    limit: float,
    x: Float32s,
    both: Float32s,
    opened: Float32s,
    out: Float32s,
    pair: int,
) -> None:
    """An expert on at most a tile of `rows`: to `out`, zeros before, from `pair` on.

    `x`, `both` and `opened` are overwritten.
    """
    hidden, width = gate_up.shape[1:]
    inner, height = width // 2, len(chosen)
    for row in range(height):
        copy_numbers(address(x, row * hidden), address(rows, chosen[row] * hidden), hidden)
        for place in range(width):
            both[row, place] = 0.0
        if len(biases):
            for place in range(width):
                both[row, place] = biases[expert, place]
            for place in range(hidden):
                out[pair + row, place] = biases[expert, width + place]
    weights = address(gate_up, expert * hidden * width)
    add_product(address(both, 0), width, address(x, 0), hidden, height, weights, hidden, width)
    for row in range(height):
        _gate_row(both[row], opened[row], alpha, shift, limit)
    weights, to = address(down, expert * inner * hidden), address(out, pair * hidden)
    add_product(to, hidden, address(opened, 0), inner, height, weights, inner, hidden)


@kept(_SOURCES, _FLOATS[2], _FLOATS[1], _INT, _BOOL)
def choose_by_softmax(
    logits: Float32s, bias: Float32s, count: int, normalise_chosen: bool
) -> tuple[Int64s, Float32s]:
    """Choose the `count` largest of `logits` [tokens, experts] plus `bias` [experts], or [0].

    Returns ids, ascending, and shares of the softmax over the chosen or over all: [tokens, count].
    """
    tokens, experts = logits.shape
    chosen = np.empty((tokens, count), np.int64)
    weights = np.empty((tokens, count), np.float32)
    scores = np.empty(experts, np.float32)
    for token in range(tokens):
        for expert in range(experts):
            scores[expert] = logits[token, expert]
        for expert in range(len(bias)):
            scores[expert] += bias[expert]
        _choose(scores, chosen[token])
        most = scores[chosen[token, 0]]
        for choice in range(1, count):
            most = max(most, scores[chosen[token, choice]])
        total = np.float32(0.0)
        for choice in range(count):
            weights[token, choice] = exponential(scores[chosen[token, choice]] - most)
            total += weights[token, choice]
        if not normalise_chosen:
            total = np.float32(0.0)
            for expert in range(experts):
                total += exponential(scores[expert] - most)
        for choice in range(count):
            weights[token, choice] /= total
    return chosen, weights


@kept(_SOURCES, _FLOATS[2], *(_FLOATS[1],) * 2, _INT, _BOOL, _INT, _INT, _FLOAT, _FLOAT)
def choose_by_sigmoid(
    logits: Float32s,
    bias: Float32s,
    choice_bias: Float32s,
    count: int,
    normalise_chosen: bool,
    groups: int,
    groups_chosen: int,
    scale: float,
    least: float,
) -> tuple[Int64s, Float32s]:
    """Choose `count` experts by sigmoids of `logits` [tokens, experts], in the best groups alone.

    `bias` is added to logits, `choice_bias` to scores by which experts are chosen, both [experts]
    or [0]. Returns ids, ascending, and `scale` times the sigmoids, or their shares: [tokens,
    count]. `least` is added to what is divided by.
    """
    tokens, experts = logits.shape
    size = experts // groups
    chosen = np.empty((tokens, count), np.int64)
    weights = np.empty((tokens, count), np.float32)
    scores = np.empty(experts, np.float32)
    eligible = np.empty(experts, np.float32)
    of_groups = np.empty(groups, np.float32)
    best_groups = np.empty(groups_chosen, np.int64)
    for token in range(tokens):
        for expert in range(experts):
            logit = logits[token, expert]
            if len(bias):
                logit += bias[expert]
            scores[expert] = np.float32(1.0) / (np.float32(1.0) + exponential(-logit))
            eligible[expert] = scores[expert]
        for expert in range(len(choice_bias)):
            eligible[expert] += choice_bias[expert]
        if groups_chosen < groups:
            for group in range(groups):
                of_groups[group] = _two_best(eligible[group * size : (group + 1) * size])
            _choose(of_groups, best_groups)
            kept_groups = 0
            for group in range(groups):
                if kept_groups < groups_chosen and best_groups[kept_groups] == group:
                    kept_groups += 1
                    continue
                for expert in range(group * size, (group + 1) * size):
                    eligible[expert] = -np.inf
        _choose(eligible, chosen[token])
        total = least
        for choice in range(count):
            weights[token, choice] = scores[chosen[token, choice]]
            total += weights[token, choice]
        for choice in range(count):
            if normalise_chosen:
                weights[token, choice] /= total
            weights[token, choice] *= scale
    return chosen, weights


@inlined
def _two_best(scores: Float32s) -> float:
    """The sum of the two largest."""
    first = second = np.float32(-np.inf)
    for place in range(len(scores)):
        score = scores[place]
        if score > first:
            first, second = score, first
        elif score > second:
            second = score
    return first + second


@compiled
def _choose(scores: Float32s, chosen: Int64s) -> None:
    """The places of the largest of `scores`, ascending, to `chosen`; of equals the first."""
    count = len(chosen)
    # `chosen` holds the best so far, by descending score.
    for place in range(len(scores)):
        held = min(place, count)
        if held == count and not scores[place] > scores[chosen[count - 1]]:
            continue
        at = min(held, count - 1)
        while at > 0 and scores[place] > scores[chosen[at - 1]]:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = place
    for end in range(1, count):
        place, at = chosen[end], end
        while at > 0 and chosen[at - 1] > place:
            chosen[at] = chosen[at - 1]
            at -= 1
        chosen[at] = place
