"""A linear layer in the pages of its checkpoint, which all chips of a host share.

A product converts a tile of the stored rows at a time, so that a chip holds half a MB of them in
float32 and never the whole matrix.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s
from emulator.compute.scaled_rows import Rows
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

TILE_ELEMENTS = 1 << 17
"""Weights converted at a time: half a MB of float32 stays in a core's cache, and OpenBLAS does not
pack it for a few rows, which makes it ten times as fast as twice as many (DECISIONS.md)."""


class MappedMatrix:
    """Rows of stored matrices, each part [outputs, inputs], one below the other.

    Tiles are cut by the parts' shapes alone, so that a product's bits depend on no other matrix.
    """

    __slots__ = ("_parts", "columns")

    def __init__(self, *parts: Rows) -> None:
        self._parts = parts
        self.columns = sum(len(part) for part in parts)

    def multiply(self, tiles: Float32s, products: ProductFormat = FP32_PRODUCTS) -> Float32s:
        """Return `tiles` [..., inputs] times the matrix: [..., columns], a column for an output.

        `products` are of the format that the matrix is stored in, which rounds `tiles` alone.
        """
        product = np.empty((*tiles.shape[:-1], self.columns), dtype=np.float32)
        together = products.columns_together
        rows = max(1, TILE_ELEMENTS // tiles.shape[-1] // together) * together
        tiles = products.round_rows(tiles)
        end = 0
        for part in self._parts:
            for first in range(0, len(part), rows):
                converted = part[first : first + rows].astype(np.float32, copy=False)
                start, end = end, end + len(converted)
                product[..., start:end] = products.multiply_rounded(tiles, converted.T)
        return product


Matrix = Float32s | MappedMatrix
"""A linear layer: [inputs, outputs] float32, or mapped."""

Matrices = NDArray[Any]
"""Linear layers of one shape: [layers, inputs, outputs] float32, or [layers] of `MappedMatrix`."""


def mapped_matrices(layers: Sequence[MappedMatrix]) -> NDArray[np.object_]:
    """An array of `layers`."""
    array = np.empty(len(layers), dtype=object)
    array[:] = layers
    return array


def are_mapped(matrices: Matrices) -> TypeGuard[NDArray[np.object_]]:
    """Whether these are `MappedMatrix`."""
    return matrices.dtype == object
