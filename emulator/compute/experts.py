"""Gated feed-forward networks: a chip's experts over the rows sent to them, and dense ones."""

import math
from typing import Any, Final

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import SwiGlu
from emulator.compute.feed_forward_kernel import Experts, Gate
from emulator.compute.layer_kernel import expert_rows, gate_rows
from emulator.compute.mapped_matrix import Matrices, are_mapped
from emulator.compute.tiled_matmul import TILE_ROWS, are_compiled, grouped_matmul, multiply_tiles
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

FEW_TILES_SHARE = 0.5
"""Below this ratio of tiles to experts, only hit experts' weights are gathered and multiplied;
above it all are, without copying (DECISIONS.md)."""

DENSE_WASTE = 2.0
"""Most padding of every expert to the busiest's tiles, over the real tiles; with more skew, experts
run one by one."""


SILU = SwiGlu()
"""SwiGLU as most models have it: x * sigmoid(x) gates the other half."""

_NO_BIASES: Final = np.zeros((0, 0), dtype=np.float32)


def gated(both: Float32s, gate: SwiGlu) -> Float32s:
    """Apply `gate` to `both` [..., 2 * intermediate], gate columns first: [..., intermediate]."""
    rows = np.ascontiguousarray(both).reshape(-1, both.shape[-1])
    return gate_rows(rows, _numbers(gate)).reshape(*both.shape[:-1], -1)


def _numbers(gate: SwiGlu) -> Gate:
    limit = math.inf if gate.limit is None else gate.limit
    return Gate(float(gate.alpha), float(gate.shift), float(limit))


class ExpertNetworks:
    """A layer's experts on a chip: matrices [local_experts, hidden, 2 * intermediate] and
    [local_experts, intermediate, hidden], and `biases` [local_experts, 2 * intermediate + hidden]
    of both products, or None. `products` are of the format that they are stored in.
    """

    __slots__ = ("_biases", "_compiled", "_down", "_gate", "_gate_up", "_numbers", "_products")

    def __init__(
        self,
        gate_up: Matrices,
        down: Matrices,
        biases: Float32s | None = None,
        gate: SwiGlu = SILU,
        products: ProductFormat = FP32_PRODUCTS,
    ) -> None:
        self._gate_up = gate_up
        self._down = down
        self._biases = None if biases is None else biases[:, None]  # a row of each tile
        self._gate = gate
        self._products = products
        self._numbers = _numbers(gate)
        self._compiled: Experts | None = None
        if are_compiled(gate_up, products):
            self._compiled = Experts(gate_up, down, _NO_BIASES if biases is None else biases)

    @property
    def compiled(self) -> tuple[Experts, Gate] | None:
        """What the kernel `expert_rows` takes, where it multiplies."""
        return None if self._compiled is None else (self._compiled, self._numbers)

    def run(self, rows: Float32s, row_of_pair: Int64s, counts: Int64s) -> Float32s:
        """Apply each expert to its pairs; returns [pairs, hidden], unweighted.

        A pair is one of `rows` [rows, hidden]: `row_of_pair` [pairs] is sorted by local expert, and
        `counts` [counted experts] are the pairs of each of the first, pairs in all. Mapped experts
        run one by one.
        """
        if self._compiled is not None:
            return expert_rows(rows, row_of_pair, counts, self._compiled, self._numbers)
        rows = rows[row_of_pair]  # [pairs, hidden]
        tile_counts = -(-counts // TILE_ROWS)  # [local_experts]
        tiles, experts = int(tile_counts.sum()), len(counts)
        busiest = int(tile_counts.max())
        mapped = are_mapped(self._gate_up)
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
        if dense:
            by_expert = tiled.reshape(experts, busiest, TILE_ROWS, -1)
            out = self._apply(by_expert, np.s_[:experts, None])
        elif few:
            out = self._apply(tiled, np.repeat(np.arange(experts), tile_counts))
        else:
            out = self._one_by_one(tiled, tile_counts)
        answers: Float32s = out.reshape(-1, rows.shape[1])[places]
        return answers

    def _apply(self, tiles: Float32s, chosen: Any) -> Float32s:
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

    def _one_by_one(self, tiles: Float32s, tile_counts: Int64s) -> Float32s:
        out = np.empty_like(tiles)
        end = 0
        for expert, count in enumerate(tile_counts.tolist()):
            start, end = end, end + count
            if count:
                out[start:end] = self._apply(tiles[start:end], expert)
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
