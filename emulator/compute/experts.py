"""The experts that live on one chip: SwiGLU feed-forward networks over the rows sent to them."""

import numpy as np
from numpy.typing import NDArray

from emulator.compute.tiled_matmul import F32, TILE_ROWS, padded_rows

GATHER_TILES_PER_EXPERT = 2
"""Up to this many tiles per expert on average, one batched product over copied weights is faster
than one product per expert; above it the copying costs more than the calls (DECISIONS.md)."""


def silu(x: F32) -> F32:
    """Return x * sigmoid(x), the gate of SwiGLU."""
    gate: F32 = np.float32(1.0) + np.exp(-x)
    return x / gate


def run_experts(rows: F32, counts: NDArray[np.int64], gate_up: F32, down: F32) -> F32:
    """Apply each expert to its rows.

    Args:
        rows: [pairs, hidden], sorted by expert: first those of local expert 0, then of 1, ...
        counts: [local_experts] rows of each expert; adds up to pairs.
        gate_up: [local_experts, hidden, 2 * intermediate], gate columns first.
        down: [local_experts, intermediate, hidden].

    Returns:
        [pairs, hidden], in the order of `rows`; unweighted.
    """
    padded_counts = -(-counts // TILE_ROWS) * TILE_ROWS  # [local_experts]
    ends = np.cumsum(padded_counts)
    starts = ends - padded_counts
    first_row = np.cumsum(counts) - counts
    pairs = rows.shape[0]
    places = np.arange(pairs) + np.repeat(starts - first_row, counts)  # [pairs] row in the layout
    laid = np.zeros((int(ends[-1]), rows.shape[1]), dtype=np.float32)
    laid[places] = rows
    tiles = laid.reshape(-1, TILE_ROWS, rows.shape[1])  # [tiles, TILE_ROWS, hidden]
    tile_counts = padded_counts // TILE_ROWS
    busy = int(np.count_nonzero(tile_counts))
    if tiles.shape[0] <= GATHER_TILES_PER_EXPERT * busy:
        out = _gathered(tiles, tile_counts, gate_up, down)
    else:
        out = _expert_by_expert(tiles, tile_counts, gate_up, down)
    answers: F32 = out.reshape(-1, rows.shape[1])[places]
    return answers


def _swiglu(tiles: F32, gate_up: F32, down: F32) -> F32:
    """[tiles, TILE_ROWS, hidden] through weights that broadcast over tiles."""
    both = np.matmul(tiles, gate_up)  # -> [tiles, TILE_ROWS, 2 * intermediate]
    intermediate = both.shape[-1] // 2
    gated: F32 = silu(both[..., :intermediate]) * both[..., intermediate:]
    out: F32 = np.matmul(gated, down)
    return out


def _gathered(tiles: F32, tile_counts: NDArray[np.int64], gate_up: F32, down: F32) -> F32:
    expert_of_tile = np.repeat(np.arange(len(tile_counts)), tile_counts)
    if len(expert_of_tile) == len(tile_counts) and bool((tile_counts == 1).all()):
        return _swiglu(tiles, gate_up, down)
    return _swiglu(tiles, gate_up[expert_of_tile], down[expert_of_tile])


def _expert_by_expert(tiles: F32, tile_counts: NDArray[np.int64], gate_up: F32, down: F32) -> F32:
    out = np.empty_like(tiles)
    end = 0
    for expert, count in enumerate(tile_counts.tolist()):
        start, end = end, end + count
        if count:
            out[start:end] = _swiglu(tiles[start:end], gate_up[expert], down[expert])
    return out


def run_experts_slowly(rows: F32, counts: NDArray[np.int64], gate_up: F32, down: F32) -> F32:
    """The obvious reference of `run_experts`: one row at a time."""
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
