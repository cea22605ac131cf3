"""Matrix products whose rows do not depend on their batch, by how a matrix is stored.

Of float32 matrices in memory they are compiled (product_kernel). Of the others every product is
made of calls of `TILE_ROWS` rows, padded with zeros: a BLAS picks its kernel by the whole product's
shape, so a row's last bits may change with the number of rows. So text does not depend on batching
or the partition.
"""

from typing import TypeGuard

import numpy as np

from emulator.arrays import Float32s
from emulator.compute.layer_kernel import products_of_groups
from emulator.compute.mapped_matrix import MappedMatrix, Matrices, Matrix, are_mapped
from emulator.formats.product_formats import FP32_PRODUCTS, ProductFormat

TILE_ROWS = 4


def are_compiled(weights: Matrix | Matrices, products: ProductFormat) -> TypeGuard[Float32s]:
    """Whether kernels multiply by these: float32 numbers in memory, as they are."""
    is_array = not isinstance(weights, MappedMatrix) and not are_mapped(weights)
    return is_array and products is FP32_PRODUCTS


def padded_rows(rows: int) -> int:
    """Rows padded to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def multiply_tiles(tiles: Float32s, weight: Matrix, products: ProductFormat) -> Float32s:
    """Multiply `tiles` [..., TILE_ROWS, inner] by `weight`: [..., TILE_ROWS, columns].

    A mapped matrix is as stored: `products` are of that format, or of float32.
    """
    if isinstance(weight, MappedMatrix):
        return weight.multiply(tiles, products)
    return products.multiply(tiles, weight)


def tiled_matmul(x: Float32s, weight: Matrix, products: ProductFormat = FP32_PRODUCTS) -> Float32s:
    """Multiply `x` [rows, inner] by `weight` [inner, columns]: [rows, columns] float32."""
    if isinstance(weight, MappedMatrix):
        return _multiply_padded(x, weight, products)
    product: Float32s = grouped_matmul(x, weight[None], products)[0]
    return product


def grouped_matmul(
    x: Float32s, weights: Matrices, products: ProductFormat = FP32_PRODUCTS
) -> Float32s:
    """Multiply by each group's own matrix: `weights` [groups, inner, columns].

    `x` is [rows, inner], the same for all groups, or [groups, rows, inner]. Returns [groups, rows,
    columns]; a row's bits depend on no other row or group, so chips may divide heads.
    """
    if are_compiled(weights, products):
        by_group = x if x.ndim == 3 else x[None]
        return products_of_groups(np.ascontiguousarray(by_group), weights)
    if are_mapped(weights):
        own = np.broadcast_to(x, (len(weights), *x.shape[-2:]))
        pairs = zip(own, weights, strict=True)
        return np.stack([_multiply_padded(rows, matrix, products) for rows, matrix in pairs])
    return _multiply_padded(x, weights[:, None], products)


def _multiply_padded(x: Float32s, weight: Matrix, products: ProductFormat) -> Float32s:
    """`x` [(groups,) rows, inner] times `weight`: a matrix, or [groups, 1, inner, columns]."""
    rows, inner = x.shape[-2:]
    if rows % TILE_ROWS:
        padded = np.zeros((*x.shape[:-2], padded_rows(rows), inner), dtype=np.float32)
        padded[..., :rows, :] = x
        x = padded
    tiles = x.reshape(*x.shape[:-2], -1, TILE_ROWS, inner)  # [(groups,) tiles, TILE_ROWS, inner]
    # -> [(groups,) tiles, TILE_ROWS, columns]
    product = multiply_tiles(tiles, weight, products)
    whole = product.reshape(*product.shape[:-3], -1, product.shape[-1])
    return np.ascontiguousarray(whole[..., :rows, :])
