"""Mixed precision of training on the chip: BF16 operands, FP32 sums and FP32 masters.

The tensor engine multiplies BF16 and sums in FP32 (PSUM), so operands are rounded to BF16 first.
Gradients pass a rounding unchanged (straight through).
"""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Float32s

_CHUNK_WORDS = 1 << 16
"""Words per chunk: with its scratch 512 KiB, inside a core's cache, and long enough for the calls.
"""


class Precision(Enum):
    """Treatment of every product's operands."""

    BF16 = "bf16"
    """Rounded to the nearest BF16, ties to even; arrays are float32."""

    FP32 = "fp32"
    """Unchanged, in the arrays' own type (float64 for gradient checks)."""


def round_to_bfloat16(values: Float32s) -> Float32s:
    """Round `values` (float32, contiguous) in place to the nearest BF16, ties to even.

    Magnitudes from the middle between the largest BF16 and 2^128 become infinite, as on the chip;
    numpy's own NaN stays NaN.
    """
    assert values.dtype == np.float32, values.dtype
    assert values.flags.c_contiguous, "a copy would be rounded instead"
    words = values.reshape(-1).view(np.uint32)
    scratch = np.empty(min(_CHUNK_WORDS, words.size), dtype=np.uint32)
    for start in range(0, words.size, _CHUNK_WORDS):
        _round_words(words[start : start + _CHUNK_WORDS], scratch)
    return values


def _round_words(words: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    """Add half of the last kept bit, less one where that bit is even, and cut."""
    addend = scratch[: words.size]
    np.right_shift(words, np.uint32(16), out=addend)
    np.bitwise_and(addend, np.uint32(1), out=addend)
    np.add(addend, np.uint32(0x7FFF), out=addend)
    np.add(words, addend, out=words)
    np.bitwise_and(words, np.uint32(0xFFFF0000), out=words)


def as_operand(values: Float32s, precision: Precision) -> Float32s:
    """Round `values` in place to the precision of an operand."""
    return round_to_bfloat16(values) if precision is Precision.BF16 else values
