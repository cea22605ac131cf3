"""FP8 weights with a float32 scale for every block of 128 x 128, as DeepSeek-V3's checkpoints.

The array has no such scales: the matrix is turned into MXFP8 when it is loaded (assumed, also by
the cost model), which rounds a second time. Weights that are stored in FP8 have the blocks already.
"""

from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.formats.minifloat import E4M3, TooLarge

SIDE: Final = 128
_SMALLEST: Final = np.float32(2.0**-149)


def fp8_block_numbers(weights: Float32s) -> Float32s:
    """`weights` [..., inner, columns] as that format has them; same shape.

    A block's scale is its largest magnitude over 448, E4M3's largest, and never below float32's
    smallest number: a block of zeros stays, and one of the smallest numbers may saturate.
    """
    numbers = np.empty_like(weights)
    inner, columns = weights.shape[-2:]
    for top in range(0, inner, SIDE):
        for left in range(0, columns, SIDE):
            part = (..., slice(top, top + SIDE), slice(left, left + SIDE))
            numbers[part] = _one_block(weights[part])
    return numbers


def _one_block(block: Float32s) -> Float32s:
    largest = np.abs(block).max(axis=(-2, -1), keepdims=True)
    scale = np.maximum(largest / np.float32(E4M3.largest), _SMALLEST)
    numbers: Float32s = E4M3.rounded(block / scale, too_large=TooLarge.SATURATE) * scale
    return numbers
