"""A mixture of experts: the router, and one chip's SwiGLU networks over the rows sent to them."""

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.tiled_matmul import TILE_ROWS, padded_rows, tiled_matmul

FEW_TILES_SHARE = 0.5
"""Below this ratio of tiles to experts, only hit experts' weights are gathered and multiplied;
above it all are, without copying (DECISIONS.md)."""

DENSE_WASTE = 2.0
"""Most padding of every expert to the busiest's tiles, over the real tiles; with more skew, experts
run one by one."""


def silu(x: Float32s) -> Float32s:
    """Return x * sigmoid(x), the gate of SwiGLU."""
    with np.errstate(over="ignore"):  # x over infinity is the 0 that is meant
        gate: Float32s = np.float32(1.0) + np.exp(-x)
    return x / gate


def run_experts(rows: Float32s, counts: Int64s, gate_up: Float32s, down: Float32s) -> Float32s:
    """Apply each expert to its rows; returns [pairs, hidden] in the order of `rows`, unweighted.

    Args:
        rows: [pairs, hidden], sorted by local expert.
        counts: [local_experts] rows of each expert; adds up to pairs.
        gate_up: [local_experts, hidden, 2 * intermediate], gate columns first.
        down: [local_experts, intermediate, hidden].
    """
    tile_counts = -(-counts // TILE_ROWS)  # [local_experts]
    tiles, experts = int(tile_counts.sum()), len(counts)
    busiest = int(tile_counts.max())
    few = tiles <= FEW_TILES_SHARE * experts
    dense = not few and experts * busiest <= DENSE_WASTE * tiles + experts
    first_tile = np.arange(experts) * busiest if dense else np.cumsum(tile_counts) - tile_counts
    first_row = np.cumsum(counts) - counts
    # [pairs] row of each pair in the tiled layout
    places = np.arange(len(rows)) + np.repeat(first_tile * TILE_ROWS - first_row, counts)
    laid = np.zeros(
        ((experts * busiest if dense else tiles) * TILE_ROWS, rows.shape[1]), np.float32
    )
    laid[places] = rows
    tiled = laid.reshape(-1, TILE_ROWS, rows.shape[1])  # [tiles, TILE_ROWS, hidden]
    if dense:
        by_expert = tiled.reshape(experts, busiest, TILE_ROWS, -1)
        out = _swiglu(by_expert, gate_up[:, None], down[:, None])
    elif few:
        expert_of_tile = np.repeat(np.arange(experts), tile_counts)
        out = _swiglu(tiled, gate_up[expert_of_tile], down[expert_of_tile])
    else:
        out = _expert_by_expert(tiled, tile_counts, gate_up, down)
    answers: Float32s = out.reshape(-1, rows.shape[1])[places]
    return answers


def _swiglu(tiles: Float32s, gate_up: Float32s, down: Float32s) -> Float32s:
    """[..., TILE_ROWS, hidden] through weights that broadcast over the leading axes."""
    both = np.matmul(tiles, gate_up)  # -> [..., TILE_ROWS, 2 * intermediate]
    intermediate = both.shape[-1] // 2
    gated: Float32s = silu(both[..., :intermediate]) * both[..., intermediate:]
    out: Float32s = np.matmul(gated, down)
    return out


def _expert_by_expert(
    tiles: Float32s, tile_counts: Int64s, gate_up: Float32s, down: Float32s
) -> Float32s:
    out = np.empty_like(tiles)
    end = 0
    for expert, count in enumerate(tile_counts.tolist()):
        start, end = end, end + count
        if count:
            out[start:end] = _swiglu(tiles[start:end], gate_up[expert], down[expert])
    return out


def run_experts_slowly(
    rows: Float32s, counts: Int64s, gate_up: Float32s, down: Float32s
) -> Float32s:
    """The slow reference of `run_experts`: one row at a time."""
    expert_of_row = np.repeat(np.arange(len(counts)), counts)
    intermediate = down.shape[1]
    out = np.empty_like(rows)
    for index, expert in enumerate(expert_of_row):
        tile = np.zeros((padded_rows(1), rows.shape[1]), dtype=np.float32)
        tile[0] = rows[index]
        both = tile @ gate_up[expert]
        gated = silu(both[:, :intermediate]) * both[:, intermediate:]
        out[index] = (gated @ down[expert])[0]
    return out


def route(
    hidden: Float32s, weight: Float32s, *, experts_per_token: int, normalise: bool
) -> tuple[Int64s, Float32s]:
    """Choose experts for `hidden` [tokens, hidden] with router `weight` [hidden, experts].

    Returns expert ids and weights [tokens, k]; `normalise` makes a token's weights add to one. Ids
    ascend, because outputs are added in this order and a sum must not depend on scores.
    """
    logits = tiled_matmul(hidden, weight)  # [tokens, experts]
    best = np.argpartition(logits, -experts_per_token, axis=1)[:, -experts_per_token:]
    chosen = np.sort(best, axis=1)  # [tokens, k]
    largest = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits[np.arange(len(logits))[:, None], chosen] - largest)
    # The softmax's denominator is that of all experts, or, normalised, of the chosen ones alone.
    whole = weights if normalise else np.exp(logits - largest)
    return chosen, weights / whole.sum(axis=1, keepdims=True)


def combine(expert_rows: Float32s, weights: Float32s) -> Float32s:
    """Add outputs [tokens, k, hidden] x `weights` [tokens, k], by ascending expert, over k."""
    # Reducing an axis that is not the innermost adds its slices one after the other.
    total: Float32s = np.add.reduce(expert_rows * weights[:, :, None], axis=1)
    return total
