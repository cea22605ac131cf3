"""Blocks of 32 numbers with one power of two as scale (OCP Microscaling formats, 1.0).

Two rules choose the scale of a block from its largest magnitude. OCP's sample algorithm (section
6.3) gives the largest element's exponent the format's largest, so that it may saturate. The chip's
`quantize_mx` takes twice that scale: the largest rounds without saturating (AWS Neuron SDK docs,
nki.isa.quantize_mx). Weights are quantised before they are loaded, activations on the chip.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

import numpy as np

from emulator.arrays import Float32s, Float64s
from emulator.formats.minifloat import (
    E2M1,
    E4M3,
    E5M2,
    Minifloat,
    TooLarge,
    Uint8s,
    Uint16s,
    Uint32s,
    powers_of_two,
)

BLOCK: Final = 32
"""Elements of a block: on the array 8 partitions by 4 packed elements."""

_Array = TypeVar("_Array", Float32s, Float64s, Uint32s)

E8M0_BIAS: Final = 127
E8M0_NAN: Final = 255


class ScaleRule(Enum):
    """OCP: 2^(floor(log2 largest) - max_exponent). CHIP: twice that."""

    OCP = 0
    CHIP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MxFormat:
    """Blocks of `element`s with a scale in E8M0, a byte that is an exponent alone."""

    name: str
    element: Minifloat


MXFP8: Final = MxFormat(name="MXFP8", element=E4M3)
MXFP8_E5M2: Final = MxFormat(name="MXFP8 (E5M2)", element=E5M2)
MXFP4: Final = MxFormat(name="MXFP4", element=E2M1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MxBlocks:
    """Numbers [..., inner] as blocks along the last axis; the last block is filled with zeros.

    Attributes:
        codes: [..., blocks, BLOCK] of the elements.
        scales: [..., blocks] in E8M0.
    """

    format: MxFormat
    inner: int
    codes: Uint16s
    scales: Uint8s

    def numbers(self) -> Float32s:
        """Elements times scales, [..., inner]: exact, but for infinities beyond float32."""
        elements = self.format.element.decode(self.codes)
        with np.errstate(over="ignore"):  # float32's largest numbers may round up to 2^128
            whole = elements * decode_scales(self.scales)[..., None]
        return whole.reshape(*self.scales.shape[:-1], -1)[..., : self.inner]


def decode_scales(scales: Uint8s) -> Float32s:
    """2^(code - 127), and NaN for 255; same shape."""
    powers = np.ldexp(np.float64(1.0), scales.astype(np.int32) - E8M0_BIAS)
    return np.where(scales == E8M0_NAN, np.nan, powers).astype(np.float32)


def quantise(
    numbers: Float32s, form: MxFormat, rule: ScaleRule, *, random: Uint32s | None = None
) -> MxBlocks:
    """Quantise `numbers` [..., inner] along the last axis.

    Elements are rounded half to even, or by `random`, 32 bits for each number, and saturate. A
    block of zeros has the smallest scale; one with NaN or an infinity is NaN as a whole (assumed of
    the chip, permitted by OCP).
    """
    inner = numbers.shape[-1]
    with np.errstate(invalid="ignore"):  # of signalling NaN
        blocks = _in_blocks(numbers.astype(np.float64))
    largest = np.abs(blocks).max(axis=-1)  # [..., blocks]; NaN where there is one
    poisoned = ~np.isfinite(largest)
    exponent = np.frexp(np.where(poisoned, 1.0, largest))[1] - 1  # floor(log2), 0 for a 0
    scale = exponent - form.element.max_exponent + rule.value
    codes = np.clip(scale + E8M0_BIAS, 0, E8M0_NAN - 1)
    codes[largest == 0] = 0
    elements = np.ldexp(np.where(poisoned[..., None], 0.0, blocks), E8M0_BIAS - codes[..., None])
    return MxBlocks(
        format=form,
        inner=inner,
        codes=form.element.encode(
            elements,
            too_large=TooLarge.SATURATE,
            random=None if random is None else _in_blocks(random),
        ),
        scales=np.where(poisoned, E8M0_NAN, codes).astype(np.uint8),
    )


def rounded_to_blocks(numbers: Float32s, form: MxFormat, rule: ScaleRule) -> Float32s:
    """`quantise(...).numbers()` with the same bits, without codes, in float32 alone."""
    inner = numbers.shape[-1]
    blocks = _in_blocks(numbers)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        return quantise(numbers, form, rule).numbers()
    scale = powers_of_two(largest) * np.float32(2.0 ** (rule.value - form.element.max_exponent))
    scale = np.maximum(scale, np.float32(2.0**-E8M0_BIAS))
    elements = form.element.rounded(blocks / scale, too_large=TooLarge.SATURATE)
    with np.errstate(over="ignore"):
        elements *= scale
    return elements.reshape(*numbers.shape[:-1], -1)[..., :inner]


def _in_blocks(numbers: _Array) -> _Array:
    """[..., inner] as [..., blocks, BLOCK], filled up with zeros."""
    *outer, inner = numbers.shape
    blocks = -(-inner // BLOCK)
    whole = np.zeros((*outer, blocks * BLOCK), dtype=numbers.dtype)
    whole[..., :inner] = numbers
    return whole.reshape(*outer, blocks, BLOCK)
