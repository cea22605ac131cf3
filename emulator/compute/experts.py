"""Gated feed-forward networks: a chip's experts over the rows sent to them, and dense ones."""

from typing import Any

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import SwiGlu
from emulator.compute.mapped_matrix import Matrices, are_mapped
from emulator.compute.tiled_matmul import (
    TILE_ROWS,
    grouped_matmul,
    multiply_tiles,
    padded_rows,
)
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

FEW_TILES_SHARE = 0.5
"""Below this ratio of tiles to experts, only hit experts' weights are gathered and multiplied;
above it all are, without copying (DECISIONS.md)."""

DENSE_WASTE = 2.0
"""Most padding of every expert to the busiest's tiles, over the real tiles; with more skew, experts
run one by one."""


SILU = SwiGlu()
"""SwiGLU as most models have it: x * sigmoid(x) gates the other half."""


def gated(both: Float32s, gate: SwiGlu) -> Float32s:
    """Apply `gate` to `both` [..., 2 * intermediate], gate columns first: [..., intermediate]."""
    width = both.shape[-1] // 2
    opened, up = both[..., :width], both[..., width:]
    if gate.limit is not None:
        limit = np.float32(gate.limit)
        opened, up = np.minimum(opened, limit), np.clip(up, -limit, limit)
    with np.errstate(over="ignore"):  # x over infinity is the 0 that is meant
        denominator: Float32s = np.float32(1.0) + np.exp(np.float32(-gate.alpha) * opened)
    product: Float32s = opened / denominator
    return product * (up + np.float32(gate.shift) if gate.shift else up)


def run_experts(
    rows: Float32s,
    counts: Int64s,
    gate_up: Matrices,
    down: Matrices,
    biases: Float32s | None = None,
    gate: SwiGlu = SILU,
    products: ProductFormat = FP32_PRODUCTS,
) -> Float32s:
    """Apply each expert to its rows; returns [pairs, hidden] in the order of `rows`, unweighted.

    Args:
        rows: [pairs, hidden], sorted by local expert.
        counts: [local_experts] rows of each expert; adds up to pairs.
        gate_up: [local_experts, hidden, 2 * intermediate], gate columns first.
        down: [local_experts, intermediate, hidden]; mapped ones run one by one.
        biases: [local_experts, 2 * intermediate + hidden], of both products; None without.
        gate: the activation.
        products: of the format that the weights are stored in.
    """
    tile_counts = -(-counts // TILE_ROWS)  # [local_experts]
    tiles, experts = int(tile_counts.sum()), len(counts)
    busiest = int(tile_counts.max())
    mapped = are_mapped(gate_up)
    few = not mapped and tiles <= FEW_TILES_SHARE * experts
    dense = not mapped and not few and experts * busiest <= DENSE_WASTE * tiles + experts
    first_tile = np.arange(experts) * busiest if dense else np.cumsum(tile_counts) - tile_counts
    first_row = np.cumsum(counts) - counts
    # [pairs] row of each pair in the tiled layout
    places = np.arange(len(rows)) + np.repeat(first_tile * TILE_ROWS - first_row, counts)
    laid = np.zeros(
        ((experts * busiest if dense else tiles) * TILE_ROWS, rows.shape[1]), np.float32
    )
    laid[places] = rows
    tiled = laid.reshape(-1, TILE_ROWS, rows.shape[1])  # [tiles, TILE_ROWS, hidden]
    weights = _Experts(gate_up, down, biases, gate, products)
    if dense:
        by_expert = tiled.reshape(experts, busiest, TILE_ROWS, -1)
        out = weights.apply(by_expert, np.s_[:, None])
    elif few:
        out = weights.apply(tiled, np.repeat(np.arange(experts), tile_counts))
    else:
        out = _expert_by_expert(tiled, tile_counts, weights)
    answers: Float32s = out.reshape(-1, rows.shape[1])[places]
    return answers


class _Experts:
    """Weights of a chip's experts, and the activation between their products."""

    def __init__(
        self,
        gate_up: Matrices,
        down: Matrices,
        biases: Float32s | None,
        gate: SwiGlu,
        products: ProductFormat,
    ) -> None:
        self._gate_up = gate_up
        self._down = down
        self._biases = None if biases is None else biases[:, None]  # a row of each tile
        self._gate = gate
        self._products = products

    def apply(self, tiles: Float32s, chosen: Any) -> Float32s:
        """[..., TILE_ROWS, hidden] through the weights at `chosen`, one expert a leading index."""
        products = self._products
        # -> [..., TILE_ROWS, 2 * intermediate]
        both = multiply_tiles(tiles, self._gate_up[chosen], products)
        width = both.shape[-1]
        if self._biases is not None:
            both += self._biases[chosen][..., :width]
        out = multiply_tiles(gated(both, self._gate), self._down[chosen], products)
        if self._biases is not None:
            out += self._biases[chosen][..., width:]
        return out


def _expert_by_expert(tiles: Float32s, tile_counts: Int64s, weights: _Experts) -> Float32s:
    out = np.empty_like(tiles)
    end = 0
    for expert, count in enumerate(tile_counts.tolist()):
        start, end = end, end + count
        if count:
            out[start:end] = weights.apply(tiles[start:end], expert)
    return out


def run_experts_slowly(
    rows: Float32s,
    counts: Int64s,
    gate_up: Float32s,
    down: Float32s,
    biases: Float32s | None = None,
    gate: SwiGlu = SILU,
) -> Float32s:
    """The slow reference of `run_experts`: one row at a time."""
    expert_of_row = np.repeat(np.arange(len(counts)), counts)
    width = gate_up.shape[2]
    if biases is None:
        biases = np.zeros((len(counts), width + rows.shape[1]), dtype=np.float32)
    out = np.empty_like(rows)
    for index, expert in enumerate(expert_of_row):
        tile = np.zeros((padded_rows(1), rows.shape[1]), dtype=np.float32)
        tile[0] = rows[index]
        both = tile @ gate_up[expert] + biases[expert, :width]
        out[index] = (gated(both, gate) @ down[expert] + biases[expert, width:])[0]
    return out


def run_dense(
    hidden: Float32s,
    gate_up: Matrices,
    down: Matrices,
    gate: SwiGlu,
    products: ProductFormat = FP32_PRODUCTS,
) -> Float32s:
    """Apply a network divided by columns to `hidden` [tokens, hidden]: [groups, tokens, hidden].

    `gate_up` is [groups, hidden, 2 * part], gate columns of the part first; `down` [groups, part,
    hidden]. The sum over groups is the network's output.
    """
    opened = gated(grouped_matmul(hidden, gate_up, products), gate)
    return grouped_matmul(opened, down, products)


def combine(expert_rows: Float32s, weights: Float32s) -> Float32s:
    """Add outputs [tokens, k, hidden] x `weights` [tokens, k], by ascending expert, over k."""
    # Reducing an axis that is not the innermost adds its slices one after the other.
    total: Float32s = np.add.reduce(expert_rows * weights[:, :, None], axis=1)
    return total
