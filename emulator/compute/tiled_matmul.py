"""Matrix products whose rows do not depend on their batch.

A BLAS picks its kernel by the whole product's shape, so a row's last bits may change with the
number of rows. Here every product is made of calls of `TILE_ROWS` rows, padded with zeros, so that
text does not depend on batching or the partition. Four rows are as fast as one large call on the
sizes used here (DECISIONS.md).
"""

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.mapped_matrix import MappedMatrix, Matrices, Matrix, are_mapped
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

TILE_ROWS = 4


def padded_rows(rows: int) -> int:
    """Rows padded to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def multiply_tiles(
    tiles: Float32s, weight: Matrix, products: ProductFormat = FP32_PRODUCTS
) -> Float32s:
    """Multiply `tiles` [..., TILE_ROWS, inner] by `weight`: [..., TILE_ROWS, columns].

    A mapped matrix is as stored, and of no other format.
    """
    if isinstance(weight, MappedMatrix):
        return weight.multiply(tiles)
    return products.multiply(tiles, weight)


def tiled_matmul(x: Float32s, weight: Matrix, products: ProductFormat = FP32_PRODUCTS) -> Float32s:
    """Multiply `x` [rows, inner] by `weight` [inner, columns]: [rows, columns] float32."""
    rows, inner = x.shape
    if rows % TILE_ROWS:
        padded = np.zeros((padded_rows(rows), inner), dtype=np.float32)
        padded[:rows] = x
        x = padded
    tiles = x.reshape(-1, TILE_ROWS, inner)  # [tiles, TILE_ROWS, inner]
    product = multiply_tiles(tiles, weight, products)  # -> [tiles, TILE_ROWS, columns]
    return product.reshape(-1, product.shape[-1])[:rows]


def grouped_matmul(
    x: Float32s, weights: Matrices, products: ProductFormat = FP32_PRODUCTS
) -> Float32s:
    """Multiply by each group's own matrix: `weights` [groups, inner, columns].

    `x` is [rows, inner], the same for all groups, or [groups, rows, inner]. Returns [groups, rows,
    columns]; a row's bits depend on no other row or group, so chips may divide heads.
    """
    rows, inner = x.shape[-2:]
    if rows % TILE_ROWS:
        padded = np.zeros((*x.shape[:-2], padded_rows(rows), inner), dtype=np.float32)
        padded[..., :rows, :] = x
        x = padded
    tiles = x.reshape(*x.shape[:-2], -1, TILE_ROWS, inner)  # [(groups,) tiles, TILE_ROWS, inner]
    # -> [groups, tiles, TILE_ROWS, columns]
    if are_mapped(weights):
        own = np.broadcast_to(tiles, (len(weights), *tiles.shape[-3:]))
        product = np.stack([each.multiply(own[group]) for group, each in enumerate(weights)])
    else:
        product = products.multiply(tiles, weights[:, None])
    return product.reshape(len(weights), -1, product.shape[-1])[:, :rows]
