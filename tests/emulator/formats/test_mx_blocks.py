import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from math import inf

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.formats.minifloat import TooLarge
from emulator.formats.mx_blocks import (
    BLOCK,
    MXFP4,
    MXFP8,
    MXFP8_E5M2,
    MxFormat,
    ScaleRule,
    decode_scales,
    quantise,
    rounded_to_blocks,
)

FORMATS = (MXFP8, MXFP8_E5M2, MXFP4)
TINY, HUGE = float(np.float32(2**-149)), float(np.finfo(np.float32).max)

each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
each_rule = pytest.mark.parametrize("rule", ScaleRule, ids=lambda rule: rule.name)


def block(*numbers: float) -> np.ndarray:
    return np.array(numbers + (0.0,) * (BLOCK - len(numbers)), dtype=np.float32)


def as_float32(exact: list[Fraction]) -> list[float]:
    """Exact, but for what rounded up to 2^128."""
    beyond = Fraction(2) ** 128
    return [float(each) if abs(each) < beyond else inf if each > 0 else -inf for each in exact]


@cache
def magnitudes(form: MxFormat) -> list[Fraction]:
    """Of the codes from 0 up to the largest number's, ascending."""
    return [Fraction(float(each)) for each in form.element.values[: form.element.largest_code + 1]]


def rounded_exactly(number: Fraction, form: MxFormat) -> Fraction:
    """The nearest number of the element's format, ties to the even code, saturating."""
    values = magnitudes(form)
    above = min(bisect_left(values, abs(number)), len(values) - 1)
    near = [(code, values[code]) for code in (above - 1, above) if code >= 0]
    _, best = min(near, key=lambda each: (abs(each[1] - abs(number)), each[0] % 2))
    return best if number >= 0 else -best


def quantised_exactly(numbers: np.ndarray, form: MxFormat, rule: ScaleRule) -> list[Fraction]:
    """OCP Microscaling 1.0, section 6.3, in exact arithmetic."""
    exact = [Fraction(float(each)) for each in numbers]
    largest = max(abs(each) for each in exact)
    if largest == 0:
        return exact
    exponent = largest.numerator.bit_length() - largest.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > largest
    shared = max(exponent - form.element.max_exponent + rule.value, -127)
    scale = Fraction(2) ** shared
    return [rounded_exactly(each / scale, form) * scale for each in exact]


def test_ocps_rule_by_hand() -> None:
    """The largest, 7, has exponent 2, as E2M1's largest number has: the scale is 1, 7 becomes 6."""
    blocks = quantise(block(7.0, 1.2, -0.3), MXFP4, ScaleRule.OCP)

    assert blocks.scales.tolist() == [127]
    assert blocks.numbers()[:4].tolist() == [6.0, 1.0, -0.5, 0.0]


def test_the_chips_rule_is_twice_the_scale_so_that_the_largest_does_not_saturate() -> None:
    numbers = block(479.0, 1.0)

    ocp, chip = (quantise(numbers, MXFP8, rule) for rule in (ScaleRule.OCP, ScaleRule.CHIP))

    assert (ocp.scales.tolist(), chip.scales.tolist()) == ([127], [128])
    assert (ocp.numbers()[0], chip.numbers()[0]) == (448.0, 480.0)


def test_scales_are_powers_of_two_as_in_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)

    np.testing.assert_array_equal(
        decode_scales(codes), codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    )


ADVERSARIAL = {
    "zeros": block(),
    "a minus zero": block(-0.0, 1.0),
    "equal maxima": np.full(BLOCK, 3.7, dtype=np.float32),
    "equal maxima of both signs": np.resize(np.float32([-0.11, 0.11]), BLOCK),
    "subnormals": block(TINY, -3 * TINY, 1000 * TINY),
    "a huge and a tiny one": block(HUGE, TINY, -1e-30, 1.0),
    "the largest float32s": np.full(BLOCK, HUGE, dtype=np.float32),
    "below a power of two": block(np.nextafter(np.float32(512), np.float32(0)), 255.9, 0.51),
    "ties": block(448.0, 17.0, 19.0, 2.5, 3.5, -0.75, 0.25, 2**-10, 3 * 2**-10),
}


@each_format
@each_rule
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_blocks_are_quantised_exactly(
    form: MxFormat, rule: ScaleRule, name: str
) -> None:
    numbers = ADVERSARIAL[name]

    for ours in (quantise(numbers, form, rule).numbers(), rounded_to_blocks(numbers, form, rule)):
        assert ours.tolist() == as_float32(quantised_exactly(numbers, form, rule))


@each_format
@each_rule
@given(
    numbers=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=BLOCK
    )
)
def test_any_block_is_quantised_exactly(
    form: MxFormat, rule: ScaleRule, numbers: list[float]
) -> None:
    whole = block(*numbers)

    for ours in (quantise(whole, form, rule).numbers(), rounded_to_blocks(whole, form, rule)):
        assert ours.tolist() == as_float32(quantised_exactly(whole, form, rule))


@each_format
@given(seed=st.integers(0, 2**32))
def test_random_blocks_have_the_scales_and_elements_of_the_specification(
    form: MxFormat, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    numbers = (rng.standard_normal((64, BLOCK)) * 2.0 ** rng.integers(-30, 30, (64, 1))).astype(
        np.float32
    )
    largest = {"E4M3": 8, "E5M2": 15, "E2M1": 2}[form.element.name]
    shared = [math.floor(math.log2(np.abs(row).max())) - largest for row in numbers]
    theirs = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}
    limit = form.element.largest
    scaled = np.clip(numbers / (2.0 ** np.array(shared))[:, None], -limit, limit)
    elements = scaled.astype(theirs.get(form.element.name, ml_dtypes.float4_e2m1fn))

    blocks = quantise(numbers, form, ScaleRule.OCP)

    assert (blocks.scales[:, 0] == np.array(shared) + 127).all()
    assert (blocks.codes[:, 0] == elements.view(np.uint8)).all()


@each_format
@given(seed=st.integers(0, 2**32), inner=st.integers(1, 100))
def test_by_ocps_rule_quantised_numbers_stay_as_they_are(
    form: MxFormat, seed: int, inner: int
) -> None:
    numbers = np.random.default_rng(seed).standard_normal((3, inner)).astype(np.float32)
    once = quantise(numbers, form, ScaleRule.OCP).numbers()

    again = quantise(once, form, ScaleRule.OCP).numbers()

    assert once.shape == numbers.shape
    assert (again == once).all()


@each_format
@each_rule
@given(seed=st.integers(0, 2**32), inner=st.integers(1, 100))
def test_rounding_without_codes_has_the_same_bits(
    form: MxFormat, rule: ScaleRule, seed: int, inner: int
) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 32, (5, inner), dtype=np.uint32)
    numbers = words.view(np.float32)  # of any size, NaN and infinities too
    numbers[1:] = np.nan_to_num(numbers[1:], nan=-0.0, posinf=1.0, neginf=-3.0)
    numbers[2:] = np.ldexp(np.frexp(numbers[2:])[0], words[2:] % 7)

    fast = rounded_to_blocks(numbers, form, rule)

    expected = quantise(numbers, form, rule).numbers()
    np.testing.assert_array_equal(fast, expected)
    assert (np.signbit(fast) == np.signbit(expected))[~np.isnan(fast)].all()


@each_format
def test_a_last_block_that_is_not_whole_is_one_of_its_own(form: MxFormat) -> None:
    numbers = np.random.default_rng(0).standard_normal(BLOCK + 5).astype(np.float32) * 9

    whole = quantise(numbers, form, ScaleRule.OCP)

    parts = [quantise(part, form, ScaleRule.OCP) for part in (numbers[:BLOCK], numbers[BLOCK:])]
    assert whole.scales.tolist() == [int(part.scales[0]) for part in parts]
    assert (whole.numbers() == np.concatenate([part.numbers() for part in parts])).all()


@each_format
@each_rule
@pytest.mark.parametrize("bad", [np.nan, inf, -inf])
def test_a_block_with_nan_or_infinity_is_nan_and_others_are_not(
    form: MxFormat, rule: ScaleRule, bad: float
) -> None:
    numbers = np.ones((2, BLOCK), dtype=np.float32)
    numbers[0, 7] = bad

    blocks = quantise(numbers, form, rule)

    assert blocks.scales[0].tolist() == [255]
    np.testing.assert_array_equal(blocks.numbers(), rounded_to_blocks(numbers, form, rule))
    assert np.isnan(blocks.numbers()[0]).all()
    assert (blocks.numbers()[1] == 1.0).all()


@given(seed=st.integers(0, 2**32))
def test_stochastic_blocks_are_right_in_the_mean(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.uniform(-5.9, 5.9, 40).astype(np.float32)
    numbers[0], numbers[32] = 5.9, -5.9  # by which both blocks' scale is 1
    words = (np.arange(1024, dtype=np.uint64) << np.uint64(22)).astype(np.uint32)
    random = np.broadcast_to(words[:, None], (1024, 40))

    blocks = quantise(np.broadcast_to(numbers, (1024, 40)), MXFP4, ScaleRule.OCP, random=random)

    mean = blocks.numbers().mean(axis=0, dtype=np.float64)
    spacing = np.where(np.abs(numbers) >= 4, 2.0, 1.0)
    assert (np.abs(mean - numbers) <= spacing / 1024).all()


def test_saturation_is_of_the_conversion_to_elements() -> None:
    """What the blocks' rule relies on: without it, 479 would be E4M3's NaN."""
    assert np.isnan(MXFP8.element.rounded(np.float32([479.0])))[0]
    stopped = MXFP8.element.rounded(np.float32([479.0]), too_large=TooLarge.SATURATE)
    assert stopped.tolist() == [448.0]
