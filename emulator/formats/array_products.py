"""Matrix products as the chip's array of 128 x 128 makes them, and a slow reference of them.

A tile has as many rows of the contraction as the array's 128 partitions hold: 128 of 16 bits, 512
of MX elements, of which each processing element multiplies 4 (AWS Neuron SDK docs,
trainium3_arch.rst). Its sum runs down a column of the array: from zero, in the contraction's order,
each exact product is added and the sum rounded to FP32. Tiles are added in FP32 (PSUM), first to
last. The 4 packed elements are neighbours, so that OCP's blocks are the array's scaling groups.
Assumed: how often the sum is rounded within a processing element, here after each product.

A BLAS that multiplies and adds at once keeps that order in its kernels for small matrices, and is
some 600 times faster than adding in numpy (DECISIONS.md). It is used in the shapes where it was
seen to give the same bits on this host.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from emulator.arrays import Float32s, Float64s

PARTITIONS: Final = 128
_WIDTHS: Final = (4096, 1024, 512, 256, 128, 64, 32, 16)
"""Columns of the slices tried: the widest at most, and narrower ones where it has other bits."""

_WHOLE: Final = _WIDTHS[-1]
"""Columns beyond a multiple of these are multiplied among zeros where a BLAS has other bits."""

_LINE: Final = 16
"""Numbers of a cache line."""

_TRIED_SUMS: Final = 1024
"""Sums compared, at least, before a shape is given to the BLAS."""


def array_product(rows: Float32s, weights: Float32s, *, depth: int) -> Float32s:
    """Multiply `rows` [..., height, inner] by `weights` [..., inner, columns], which broadcast.

    A row's bits depend on no other. `depth` is the rows of the contraction in a tile. Operands have
    at most 12 significant bits, so that float32 holds their products but for its smallest numbers.
    """
    inner = rows.shape[-1]
    rows, weights = np.ascontiguousarray(rows), _row_major(weights)
    total = _tile_product(rows[..., :depth], weights[..., :depth, :])
    for start in range(depth, inner, depth):
        end = min(start + depth, inner)
        total += _tile_product(rows[..., start:end], weights[..., start:end, :])
    return total


def _row_major(weights: Float32s) -> Float32s:
    """As it is where rows lie whole: a BLAS has other kernels for columns.

    Turned by way of columns that begin in cache lines an odd number apart: a power of two apart
    they drive each other out of the cache, which takes three to eight times as long.
    """
    if weights.strides[-1] == weights.itemsize:
        return weights
    columns = np.swapaxes(weights, -1, -2)
    lines = -(-columns.shape[-1] // _LINE) | 1
    apart = np.empty((*columns.shape[:-1], lines * _LINE), dtype=np.float32)
    apart = apart[..., : columns.shape[-1]]
    apart[...] = columns
    return np.ascontiguousarray(np.swapaxes(apart, -1, -2))


def array_product_slowly(rows: Float32s, weights: Float32s, *, depth: int) -> Float32s:
    """The slow reference of `array_product`: one product after the other."""
    inner = rows.shape[-1]
    outer = np.broadcast_shapes(rows.shape[:-2], weights.shape[:-2])
    total = np.zeros((*outer, rows.shape[-2], weights.shape[-1]), dtype=np.float32)
    for start in range(0, inner, depth):
        running = np.zeros_like(total)
        for place in range(start, min(start + depth, inner)):
            left, right = rows[..., place, None], weights[..., place, None, :]
            running = _added(running, left.astype(np.float64) * right)
        total = running if start == 0 else total + running
    return total


def _added(total: Float32s, exact: Float64s) -> Float32s:
    """`total` plus numbers that float64 holds, rounded once to float32.

    A sum of float64 may be rounded itself, and then to float32 a second time. Where it was not
    exact, its last bit is made odd, which stands for what is below it.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are sums like others
        first = total.astype(np.float64)
        whole = first + exact
        rest = whole - first
        error = (first - (whole - rest)) + (exact - rest)  # of the addition, exact (Knuth)
        bits = whole.view(np.int64)
        inexact = np.isfinite(whole) & (error != 0) & (bits % 2 == 0)
        beyond = np.where((error > 0) == (whole > 0), bits + 1, bits - 1)
        return np.where(inexact, beyond, bits).view(np.float64).astype(np.float32)


def _tile_product(rows: Float32s, weights: Float32s) -> Float32s:
    depth, columns = weights.shape[-2:]
    width = _blas_columns(rows.shape[-2], depth, columns)
    if width == 0 and columns % _WHOLE:
        return _padded_product(rows, weights)
    if width == 0:
        return array_product_slowly(rows, weights, depth=depth)
    if width >= columns:
        whole: Float32s = np.matmul(rows, weights)
        return whole
    cuts = range(width, columns, width)
    return np.concatenate(
        [np.matmul(rows, part) for part in np.split(weights, cuts, axis=-1)], axis=-1
    )


def _padded_product(rows: Float32s, weights: Float32s) -> Float32s:
    """As `_tile_product`, with the last columns among zeros."""
    depth, columns = weights.shape[-2:]
    whole = columns // _WHOLE * _WHOLE
    padded = np.zeros((*weights.shape[:-2], depth, _WHOLE), dtype=np.float32)
    padded[..., : columns - whole] = weights[..., whole:]
    rest = _tile_product(rows, padded)[..., : columns - whole]
    if whole == 0:
        return rest
    return np.concatenate([_tile_product(rows, weights[..., :whole]), rest], axis=-1)


@lru_cache(maxsize=256)
def _blas_columns(height: int, depth: int, columns: int) -> int:
    """The most columns that the host's BLAS multiplies with the array's bits; 0 for none.

    Tried on numbers whose products lie beyond each other's last bits, and below float32's normal
    numbers, where a multiplication that rounds before it adds is seen.
    """
    for width in (min(columns, _WIDTHS[0]), *(each for each in _WIDTHS if each < columns)):
        tried = {width, columns % width or width}
        if all(_same_bits(height, depth, each) for each in tried):
            return width
    return 0


def _same_bits(height: int, depth: int, columns: int) -> bool:
    generator = np.random.default_rng(depth)
    times = -(-_TRIED_SUMS // (height * columns))
    for least in (-20, -75):
        rows = _short_numbers(generator, (times, height, depth), least)
        weights = _short_numbers(generator, (times, depth, columns), least)
        if not np.array_equal(
            np.matmul(rows, weights), array_product_slowly(rows, weights, depth=depth)
        ):
            return False
    return True


def _short_numbers(generator: np.random.Generator, shape: tuple[int, ...], least: int) -> Float32s:
    """Numbers of 4 significant bits, from 2^`least` on over 40 binades."""
    whole = generator.integers(-15, 16, shape).astype(np.float32)
    return np.ldexp(whole, generator.integers(least, least + 40, shape))
