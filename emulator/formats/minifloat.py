"""Small binary floating-point numbers: codes to values and back, with both roundings of the chip.

BF16, E5M2 and Trainium2's E4M3 have infinities as in IEEE 754; the E4M3 of OCP (FP8 specification,
1.0; "fn") gives them up for one more binade, and E2M1 (OCP Microscaling, 1.0) for NaN too.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from emulator.arrays import Bools, Float32s, Float64s

Uint8s = NDArray[np.uint8]
Uint16s = NDArray[np.uint16]
Uint32s = NDArray[np.uint32]

_RANDOM_STEPS: Final = 2.0**32
"""Values of a random word."""


class Specials(Enum):
    """What codes beside finite numbers there are.

    IEEE: the largest exponent is infinity and NaN. NAN: only the largest magnitude is NaN. NONE.
    """

    IEEE = "infinities and NaN"
    NAN = "NaN"
    NONE = "none"


class TooLarge(Enum):
    """What becomes of magnitudes that round beyond the largest finite one.

    SATURATE: the largest finite one, as in conversions to MX. SPECIAL: infinity, or NaN where there
    is no infinity, as conversions of `ml_dtypes` and of PyTorch; saturated where there is neither.
    """

    SATURATE = "saturate"
    SPECIAL = "special"


@dataclass(frozen=True, kw_only=True)
class Minifloat:
    """A sign, `exponent_bits` with the usual bias, `mantissa_bits`; subnormals are numbers."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: Specials

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is added to an exponent to store it."""
        return (1 << (self.exponent_bits - 1)) - 1

    @cached_property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        magnitudes = 1 << (self.bits - 1)
        beyond = {
            Specials.IEEE: 1 << self.mantissa_bits,
            Specials.NAN: 1,
            Specials.NONE: 0,
        }[self.specials]
        return magnitudes - beyond - 1

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        return float(self.values[self.largest_code])

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number: 8 in E4M3, 15 in E5M2, 2 in E2M1."""
        return (self.largest_code >> self.mantissa_bits) - self.bias

    @property
    def infinity_code(self) -> int | None:
        """The code of positive infinity, if there is one."""
        return self.largest_code + 1 if self.specials is Specials.IEEE else None

    @property
    def nan_code(self) -> int | None:
        """The code of a positive, quiet NaN, if there is one."""
        if self.specials is Specials.NONE:
            return None
        quiet = 1 << (self.mantissa_bits - 1) if self.specials is Specials.IEEE else 0
        return self.largest_code + 1 + quiet

    @cached_property
    def values(self) -> Float32s:
        """The number of every code, [2 ** bits] float32, which holds each exactly."""
        codes = np.arange(1 << self.bits)
        magnitude = codes & ((1 << (self.bits - 1)) - 1)
        exponent = np.maximum(magnitude >> self.mantissa_bits, 1)  # subnormals have the smallest
        leading = np.where(magnitude >> self.mantissa_bits, 1 << self.mantissa_bits, 0)
        whole = leading + (magnitude & ((1 << self.mantissa_bits) - 1))
        values = np.ldexp(whole.astype(np.float64), exponent - self.bias - self.mantissa_bits)
        values[magnitude > self.largest_code] = np.nan
        if self.infinity_code is not None:
            values[magnitude == self.infinity_code] = np.inf
        return np.where(codes == magnitude, values, -values).astype(np.float32)

    def decode(self, codes: Uint8s | Uint16s) -> Float32s:
        """The number of each code; same shape."""
        return self.values[codes]

    def encode(
        self,
        numbers: Float32s | Float64s,
        *,
        too_large: TooLarge = TooLarge.SPECIAL,
        random: Uint32s | None = None,
    ) -> Uint16s:
        """The code of each number, rounded once: half to even, or stochastically.

        With `random`, 32 bits for each number, its magnitude is rounded up where they are below
        the part that rounding down would drop, of 2^32. NaN keeps its sign and no payload.
        """
        with np.errstate(invalid="ignore"):  # of signalling NaN
            exact = np.asarray(numbers, dtype=np.float64)
        magnitude = np.abs(exact)
        is_nan, infinite = np.isnan(magnitude), np.isinf(magnitude)
        finite = np.where(is_nan | infinite, 0.0, magnitude)
        least = 1 - self.bias  # of subnormals and of zero
        exponent = np.where(finite == 0, least, np.maximum(np.frexp(finite)[1] - 1, least))
        quanta = np.ldexp(finite, self.mantissa_bits - exponent)  # exact: a power of two
        whole = _rounded(quanta, random)
        # A mantissa that rounds up to the next binade carries into the exponent's bits.
        codes = whole.astype(np.int64) + ((exponent + self.bias - 1) << self.mantissa_bits)
        codes[(codes > self.largest_code) | infinite] = self._code_beyond(too_large)
        if self.nan_code is not None:
            codes[is_nan] = self.nan_code
        assert self.nan_code is not None or not is_nan.any(), f"{self.name} has no NaN"
        codes[np.signbit(exact)] |= 1 << (self.bits - 1)
        return codes.astype(np.uint16)

    def _code_beyond(self, too_large: TooLarge) -> int:
        if too_large is TooLarge.SATURATE or self.specials is Specials.NONE:
            return self.largest_code
        return self.largest_code + 1

    def rounded(
        self,
        numbers: Float32s,
        *,
        too_large: TooLarge = TooLarge.SPECIAL,
        random: Uint32s | None = None,
    ) -> Float32s:
        """Each number as this format has it; same shape. Arguments as those of `encode`.

        Half to even, where nothing is too large, it is done in float32 alone, with the same bits.
        """
        if random is None:
            fast = self._rounded_to_even(numbers)
            if np.abs(fast).max(initial=0.0) <= self.largest:  # not so where there is NaN
                return fast
        return self.decode(self.encode(numbers, too_large=too_large, random=random))

    def _rounded_to_even(self, numbers: Float32s) -> Float32s:
        """Without regard to the largest number."""
        quantum = np.maximum(powers_of_two(numbers), np.float32(2.0 ** (1 - self.bias)))
        quantum *= np.float32(2.0**-self.mantissa_bits)
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities and NaN
            whole: Float32s = np.rint(numbers / quantum)
            whole *= quantum
        return whole


def powers_of_two(numbers: Float32s) -> Float32s:
    """The largest power of two that is at most each magnitude, of float32's normal numbers; 0 for
    subnormal ones, and infinity for infinities and NaN.
    """
    words = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    return (words & np.uint32(0x7F800000)).view(np.float32)


def _rounded(quanta: Float64s, random: Uint32s | None) -> Float64s:
    if random is None:
        return np.rint(quanta)  # half to even
    below = np.floor(quanta)
    up: Bools = random < (quanta - below) * _RANDOM_STEPS  # both exact in float64
    return below + up


BF16: Final = Minifloat(name="BF16", exponent_bits=8, mantissa_bits=7, specials=Specials.IEEE)
E4M3: Final = Minifloat(name="E4M3", exponent_bits=4, mantissa_bits=3, specials=Specials.NAN)
E4M3_IEEE: Final = Minifloat(
    name="E4M3 of Trainium2", exponent_bits=4, mantissa_bits=3, specials=Specials.IEEE
)
E5M2: Final = Minifloat(name="E5M2", exponent_bits=5, mantissa_bits=2, specials=Specials.IEEE)
E2M1: Final = Minifloat(name="E2M1", exponent_bits=2, mantissa_bits=1, specials=Specials.NONE)
