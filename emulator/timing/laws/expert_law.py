"""The law of routed experts: grouped products of the rows that one chip's experts get."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.near_memory import (
    kept_share,
    near_ns,
    overlapped_ns,
    stored_ns,
)
from emulator.timing.laws.silicon import Constant, Silicon

_TILE_ROWS: Final = (16, 32, 64, 128)
_EDGE_ROWS: Final = 64.0
_ROW_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertShape:
    """One layer's routed experts on one chip of `divided` that share them, [kernels].

    `tokens` of the group choose `chosen` of `experts` each; a chip has `held`, with `columns` of
    each one's width, as `matrices` (3 with a gate). `skewed`: choices that follow a power law.
    """

    tokens: Float64s
    chosen: Float64s
    experts: Float64s
    held: Float64s
    divided: Float64s
    hidden: Float64s
    columns: Float64s
    matrices: Float64s
    element_bytes: Float64s
    skewed: Float64s

    @property
    def most_pairs(self) -> Float64s:
        """Of tokens and held experts."""
        most: Float64s = self.tokens * np.minimum(self.chosen, self.held)
        return most

    def least_ns(self, silicon: Silicon) -> Float64s:
        """An even part of all pairs at the matrix engines' peak rate: no kernel is faster."""
        pairs = np.minimum(self.tokens * self.chosen / self.divided, self.most_pairs)
        return 2 * pairs * self.matrices * self.hidden * self.columns / silicon.flops


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertLaw:
    """Constants of routed experts.

    Attributes:
        start_ns: launches: gating's sort, gather, two products, scatter.
        expert_ns: each expert of the layer, in counting and sorting.
        skew: with skewed choices, the busiest chip's part of all pairs is `divided` ** -skew; 1 is
            an even part.
        unrouted: of the rows of pairs that belong to other chips, the part that is moved anyway.
        tensor_share, memory_share: of the matrix engines' and HBM's rate.
        edge: as in `ProductLaw`, relative to 64 rows.
        rows_share: of the rates for gathering, activating and scattering rows.
        near_bytes, copies: as in `ProductLaw`.
        overlap: exponent of the norm of products' and loads' times.
    """

    start_ns: Constant
    expert_ns: Constant
    skew: Constant
    unrouted: Constant
    tensor_share: Constant
    memory_share: Constant
    edge: Constant
    rows_share: Constant
    near_bytes: Constant
    copies: Constant
    overlap: Constant

    def pairs(self, shape: ExpertShape) -> Float64s:
        """Rows of the busiest chip, one for each of its (token, expert) pairs: [kernels]."""
        skew = np.where(shape.skewed > 0, self.skew, 1.0)
        even = shape.tokens * shape.chosen * shape.divided**-skew
        pairs: Float64s = np.minimum(even, shape.most_pairs)
        return pairs

    def distinct(self, shape: ExpertShape) -> Float64s:
        """Held experts with a row, by chance: [kernels]."""
        pairs = self.pairs(shape)
        found = shape.held * -np.expm1(-pairs / shape.held)
        distinct: Float64s = np.maximum(np.minimum(1.0, pairs), found)
        return distinct

    def duration_ns(
        self, shape: ExpertShape, silicon: Silicon, *, in_loop: bool = False
    ) -> Float64s:
        """[kernels]; `in_loop`: as benchmarks run it."""
        pairs, distinct = self.pairs(shape), self.distinct(shape)
        weight_bytes = (
            distinct * shape.matrices * shape.hidden * shape.columns * shape.element_bytes
        )
        kept = np.zeros_like(pairs)
        if in_loop:
            kept = kept_share(weight_bytes, silicon, copies=self.copies)
        loads_ns = stored_ns(
            weight_bytes,
            kept,
            silicon,
            memory_share=self.memory_share,
            core_bytes=self.near_bytes,
        )
        products_ns = self._products_ns(shape, silicon, pairs, distinct)
        touched = pairs + self.unrouted * np.maximum(0.0, shape.tokens * shape.chosen - pairs)
        rows_bytes = _ROW_BYTES * (
            2 * shape.tokens * shape.hidden + 3 * touched * (shape.hidden + shape.columns)
        )
        rows_ns = near_ns(rows_bytes, silicon, core_bytes=self.near_bytes) / self.rows_share
        total: Float64s = (
            self.start_ns
            + self.expert_ns * shape.experts
            + overlapped_ns(self.overlap, loads_ns, products_ns)
            + rows_ns
        )
        return total

    def _products_ns(
        self, shape: ExpertShape, silicon: Silicon, pairs: Float64s, distinct: Float64s
    ) -> Float64s:
        """By the fastest tile, all experts having equally many rows."""
        best = np.full_like(pairs, np.inf)
        each = np.maximum(pairs / distinct, 1.0)
        for tile_rows in _TILE_ROWS:
            rows = distinct * np.ceil(each / tile_rows) * tile_rows
            flops = 2 * rows * shape.matrices * shape.hidden * shape.columns
            edges = 1 + self.edge * _EDGE_ROWS / tile_rows
            best = np.minimum(best, flops * edges / (silicon.flops * self.tensor_share))
        return best
