"""Feed-forward networks of a layer, compiled: the sum before them, routers, experts, dense parts.

A row's bits depend on no other row, nor on which experts and parts a chip has beside its own.
"""

from typing import Final, NamedTuple

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compiled import allocating, compiled, inlined
from emulator.compute.attention_kernel import norm_rows
from emulator.compute.product_kernel import add_product, multiply_groups
from emulator.compute.vectors import RowsAt, address, copy_numbers, exponential

_TILE_ROWS: Final = 4


@allocating
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


@allocating
def join(
    residual: Float32s, addends: Float32s, bias: Float32s, norm: Float32s, eps: np.float32
) -> tuple[Float32s, Float32s]:
    """`add_parts`, and the norm of that: both [rows, width]."""
    total = add_parts(residual, addends, bias)
    return total, norm_rows(total, norm, eps)


@allocating
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


class Gate(NamedTuple):
    """The numbers of a `SwiGlu`; `limit` is infinity without one."""

    alpha: float
    shift: float
    limit: float


class Experts(NamedTuple):
    """A chip's experts; see `ExpertSet`."""

    gate_up: Float32s  # [local_experts, hidden, 2 * intermediate], gate columns first
    down: Float32s  # [local_experts, intermediate, hidden]
    biases: Float32s  # [local_experts, 2 * intermediate + hidden], of both products; or [0, 0]


class _Tile(NamedTuple):
    """Arrays for some rows in an expert."""

    x: Float32s  # [rows, hidden]
    both: Float32s  # [rows, 2 * intermediate]
    opened: Float32s  # [rows, intermediate]


@inlined
def _gate_row(both: Float32s, out: Float32s, gate: Gate) -> None:
    """SwiGLU of `both` [2 * width], gate numbers first: to `out` [width]."""
    width = len(out)
    limit, shift = np.float32(gate.limit), np.float32(gate.shift)
    for place in range(width):
        opened = min(both[place], limit)
        up = max(min(both[width + place], limit), -limit) + shift
        out[place] = opened / (np.float32(1.0) + exponential(-np.float32(gate.alpha) * opened)) * up


@allocating
def gate_rows(both: Float32s, gate: Gate) -> Float32s:
    """`both` [rows, 2 * width], gate columns first, gated: [rows, width]."""
    out = np.empty((len(both), both.shape[1] // 2), np.float32)
    for row in range(len(both)):
        _gate_row(both[row], out[row], gate)
    return out


@allocating
def expert_rows(
    rows: Float32s, row_of_pair: Int64s, counts: Int64s, experts: Experts, gate: Gate
) -> Float32s:
    """Apply each expert to its pairs; returns [pairs, hidden], unweighted.

    A pair is one of `rows` [rows, hidden]: `row_of_pair` [pairs] is sorted by local expert, and
    `counts` [local_experts] are the pairs of each, pairs in all.
    """
    hidden, width = experts.gate_up.shape[1:]
    out = np.zeros((len(row_of_pair), hidden), np.float32)
    tile = _Tile(
        np.empty((_TILE_ROWS, hidden), np.float32),
        np.empty((_TILE_ROWS, width), np.float32),
        np.empty((_TILE_ROWS, width // 2), np.float32),
    )
    end = 0
    for expert in range(len(counts)):
        first, end = end, end + counts[expert]
        for pair in range(first, end, _TILE_ROWS):
            chosen = row_of_pair[pair : min(pair + _TILE_ROWS, end)]
            _run_expert(rows, chosen, experts, expert, gate, tile, out[pair : pair + len(chosen)])
    return out


@compiled
def _run_expert(
    rows: Float32s,
    chosen: Int64s,
    experts: Experts,
    expert: int,
    gate: Gate,
    tile: _Tile,
    out: Float32s,
) -> None:
    """An expert on the `chosen` of `rows`, at most a tile: to `out` [chosen, hidden], zeros
    before.
    """
    hidden, width = experts.gate_up.shape[1:]
    inner, height = width // 2, len(chosen)
    for row in range(height):
        source = address(rows, chosen[row] * hidden)
        copy_numbers(address(tile.x, row * hidden), source, hidden)
        for place in range(width):
            tile.both[row, place] = 0.0
        if len(experts.biases):
            for place in range(width):
                tile.both[row, place] = experts.biases[expert, place]
            for place in range(hidden):
                out[row, place] = experts.biases[expert, width + place]
    to, by = RowsAt(address(tile.both, 0), width), RowsAt(address(tile.x, 0), hidden)
    own = address(experts.gate_up, expert * hidden * width)
    add_product(to, by, height, own, hidden, width)
    for row in range(height):
        _gate_row(tile.both[row], tile.opened[row], gate)
    to, by = RowsAt(address(out, 0), hidden), RowsAt(address(tile.opened, 0), inner)
    own = address(experts.down, expert * inner * hidden)
    add_product(to, by, height, own, inner, hidden)


class ExpertChoice(NamedTuple):
    """How many experts are chosen, and how; see `Routing`.

    Attributes:
        by_sigmoid: or by softmax, with what is above `scale` alone.
        least: added to what is divided by.
    """

    by_sigmoid: bool
    chosen: int
    normalise: bool
    groups: int
    groups_chosen: int
    scale: float
    least: float


class RouterArrays(NamedTuple):
    """A layer's router; see `RouterWeights`. A bias that a model does not have is [0]."""

    matrix: Float32s  # [1, hidden, experts]
    bias: Float32s  # [experts]
    choice_bias: Float32s  # [experts]


@allocating
def route(hidden: Float32s, router: RouterArrays, choice: ExpertChoice) -> tuple[Int64s, Float32s]:
    """`choose` for `hidden` [tokens, hidden]."""
    tokens, width = hidden.shape
    logits = multiply_groups(hidden.reshape(-1), tokens, width, 0, router.matrix)
    return choose(logits[0], router.bias, router.choice_bias, choice)


@allocating
def choose(
    logits: Float32s, bias: Float32s, choice_bias: Float32s, choice: ExpertChoice
) -> tuple[Int64s, Float32s]:
    """Choose experts by `logits` [tokens, experts] plus `bias` [experts], or [0].

    Returns ids, ascending, and weights: [tokens, chosen]. By softmax these are the largest, and the
    weights their shares over all or, normalised, over the chosen; otherwise see `_by_sigmoid`.
    """
    if choice.by_sigmoid:
        return _by_sigmoid(logits, bias, choice_bias, choice)
    return _by_softmax(logits, bias, choice.chosen, choice.normalise)


@allocating
def _by_softmax(
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


@allocating
def _by_sigmoid(
    logits: Float32s, bias: Float32s, choice_bias: Float32s, choice: ExpertChoice
) -> tuple[Int64s, Float32s]:
    """Choose experts by sigmoids of `logits` [tokens, experts], in the best groups alone.

    `bias` is added to logits, `choice_bias` to scores by which experts are chosen, both [experts]
    or [0]. Returns ids, ascending, and weights: [tokens, chosen].
    """
    tokens, experts = logits.shape
    chosen = np.empty((tokens, choice.chosen), np.int64)
    weights = np.empty((tokens, choice.chosen), np.float32)
    scores = np.empty(experts, np.float32)
    eligible = np.empty(experts, np.float32)
    of_groups = np.empty(choice.groups, np.float32)
    best = np.empty(choice.groups_chosen, np.int64)
    for token in range(tokens):
        for expert in range(experts):
            logit = logits[token, expert] + (bias[expert] if len(bias) else np.float32(0.0))
            scores[expert] = np.float32(1.0) / (np.float32(1.0) + exponential(-logit))
            eligible[expert] = scores[expert]
        for expert in range(len(choice_bias)):
            eligible[expert] += choice_bias[expert]
        if choice.groups_chosen < choice.groups:
            _keep_best_groups(eligible, of_groups, best)
        _choose(eligible, chosen[token])
        total = np.float32(choice.least)
        for place in range(choice.chosen):
            total += scores[chosen[token, place]]
        for place in range(choice.chosen):
            weight = scores[chosen[token, place]]
            weight = weight / total if choice.normalise else weight
            weights[token, place] = weight * np.float32(choice.scale)
    return chosen, weights


@compiled
def _keep_best_groups(eligible: Float32s, of_groups: Float32s, best: Int64s) -> None:
    """Make `eligible` [experts] minus infinity outside the `best` [chosen] of the groups, which are
    overwritten.
    """
    size = len(eligible) // len(of_groups)
    for group in range(len(of_groups)):
        of_groups[group] = _two_best(eligible[group * size : (group + 1) * size])
    _choose(of_groups, best)
    place = 0
    for group in range(len(of_groups)):
        if place < len(best) and best[place] == group:
            place += 1
            continue
        for expert in range(group * size, (group + 1) * size):
            eligible[expert] = -np.inf


@inlined
def _two_best(scores: Float32s) -> np.float32:
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
