"""The law of one matrix product, m rows by a stored weight of n outputs and k inputs."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.near_memory import (
    kept_share,
    least_ns,
    near_ns,
    overlapped_ns,
    stored_ns,
)
from emulator.timing.laws.silicon import Constant, Silicon

TILES: Final = ((16, 128), (32, 128), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256))
"""Rows and outputs of the tiles that libraries choose from."""
_SPLITS: Final = (1, 2, 4, 8)
"""Parts of a contraction that cores may take side by side and add up."""
_EDGE: Final = 128.0  # rows and outputs of the tile that `edge` is relative to
_OUTPUT_BYTES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductShape:
    """Products [kernels]: `element_bytes` of a stored weight and of a multiplied activation.

    `quantised`: whether the kernel's time includes converting its activations from 16 bits.
    """

    rows: Float64s
    outputs: Float64s
    inputs: Float64s
    element_bytes: Float64s
    quantised: Float64s

    @property
    def flops(self) -> Float64s:
        """Real ones."""
        return 2 * self.rows * self.outputs * self.inputs

    @property
    def weight_bytes(self) -> Float64s:
        """Of the whole stored weight."""
        return self.element_bytes * self.outputs * self.inputs

    def least_ns(self, silicon: Silicon) -> Float64s:
        """No kernel is faster."""
        return least_ns(self.flops, self.weight_bytes, silicon)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductLaw:
    """Constants of products.

    Attributes:
        start_ns: launch, first loads, last stores.
        quantise_ns: kernels before it that find scales and convert activations.
        tensor_share: of the peak, in tiles without edges.
        memory_share: of HBM's rate, when all cores load.
        edge: loads of operands that a tile of 128 x 128 cannot hide, over its products; smaller
            tiles have more edge for their inside.
        wave: of the last wave's idle cores, the part that is waited for: 1 is whole waves, 0 is
            work that is cut evenly.
        split_ns: adding up the parts of a split contraction.
        streams: cores that saturate HBM, as a multiple: 4 says that a quarter of them do.
        overlap: exponent of the norm of products' and loads' times.
        copies: weights that a benchmark's loop goes through before the first comes again.
        near_bytes: of near memory, per ns and core.
    """

    start_ns: Constant
    quantise_ns: Constant
    tensor_share: Constant
    memory_share: Constant
    edge: Constant
    wave: Constant
    split_ns: Constant
    streams: Constant
    overlap: Constant
    copies: Constant
    near_bytes: Constant

    def duration_ns(
        self, shape: ProductShape, silicon: Silicon, *, in_loop: bool = False
    ) -> Float64s:
        """[kernels], by the fastest tile and split; `in_loop`: as benchmarks run it."""
        kept = np.zeros_like(shape.rows)
        if in_loop:
            kept = kept_share(shape.weight_bytes, silicon, copies=self.copies)
        best = np.full_like(shape.rows, np.inf)
        for tile_rows, tile_outputs in TILES:
            for split in _SPLITS:
                tiled = self._tiled_ns(shape, silicon, tile_rows, tile_outputs, split, kept)
                best = np.minimum(best, tiled)
        converted = shape.rows * shape.inputs * (_OUTPUT_BYTES + shape.element_bytes)
        before = near_ns(converted, silicon, core_bytes=self.near_bytes) + self.quantise_ns
        total: Float64s = self.start_ns + best + np.where(shape.quantised > 0, before, 0.0)
        return total

    def _tiled_ns(
        self,
        shape: ProductShape,
        silicon: Silicon,
        tile_rows: int,
        tile_outputs: int,
        split: int,
        kept: Float64s,
    ) -> Float64s:
        tiles = np.ceil(shape.rows / tile_rows) * np.ceil(shape.outputs / tile_outputs) * split
        waves = tiles / silicon.cores
        waited = np.maximum(1.0, waves + self.wave * (np.ceil(waves) - waves))
        core_flops = silicon.flops / silicon.cores * self.tensor_share
        edges = 1 + self.edge * _EDGE / 2 * (1 / tile_rows + 1 / tile_outputs)
        tile_flops = 2 * tile_rows * tile_outputs * shape.inputs / split
        products_ns = waited * tile_flops / core_flops * edges
        columns = shape.outputs / tile_outputs * split  # cores that load weights; others load rows
        loading = np.minimum(1.0, columns / silicon.cores * self.streams)
        weights = stored_ns(
            shape.weight_bytes,
            kept,
            silicon,
            memory_share=self.memory_share,
            core_bytes=self.near_bytes,
        )
        rest_bytes = shape.rows * (
            shape.element_bytes * shape.inputs + _OUTPUT_BYTES * split * shape.outputs
        )
        loads_ns = weights / loading + near_ns(rest_bytes, silicon, core_bytes=self.near_bytes)
        adding = self.split_ns if split > 1 else 0.0
        return overlapped_ns(self.overlap, products_ns, loads_ns) + adding
