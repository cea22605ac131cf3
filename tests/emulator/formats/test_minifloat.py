import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.mixed_precision import round_to_bfloat16
from emulator.formats.minifloat import BF16, E2M1, E4M3, E4M3_IEEE, E5M2, Minifloat, TooLarge

THEIRS = {
    "BF16": ml_dtypes.bfloat16,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E4M3 of Trainium2": ml_dtypes.float8_e4m3,
    "E5M2": ml_dtypes.float8_e5m2,
    "E2M1": ml_dtypes.float4_e2m1fn,
}
FORMATS = (BF16, E4M3, E4M3_IEEE, E5M2, E2M1)
EVERY_BF16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)

each_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def their_codes(form: Minifloat, numbers: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of signalling NaN
        converted = numbers.astype(THEIRS[form.name])
    return converted.view(np.uint16 if form is BF16 else np.uint8).astype(np.uint16)


def test_e2m1_by_hand() -> None:
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

    assert E2M1.values.tolist() == magnitudes + [-each for each in magnitudes]
    assert E2M1.encode(np.array([0.25, 0.75, 2.5, 5.0, -100.0])).tolist() == [0, 2, 4, 6, 15]


def test_the_largest_numbers_are_those_of_the_specifications() -> None:
    assert [form.largest for form in FORMATS[1:]] == [448.0, 240.0, 57344.0, 6.0]
    assert [form.max_exponent for form in FORMATS] == [127, 8, 7, 15, 2]


@each_format
def test_every_code_is_the_number_of_ml_dtypes(form: Minifloat) -> None:
    codes = np.arange(1 << form.bits, dtype=np.uint16 if form is BF16 else np.uint8)
    theirs = codes.view(THEIRS[form.name]).astype(np.float32)

    ours = form.decode(codes)

    np.testing.assert_array_equal(ours, theirs)
    assert (np.signbit(ours) == np.signbit(theirs))[~np.isnan(ours)].all()


@each_format
def test_every_number_of_a_format_has_its_own_code(form: Minifloat) -> None:
    codes = np.arange(1 << form.bits, dtype=np.uint16)
    numbers = form.decode(codes)
    is_number = ~np.isnan(numbers)

    assert (form.encode(numbers[is_number]) == codes[is_number]).all()


@each_format
def test_every_bf16_is_converted_as_ml_dtypes_does(form: Minifloat) -> None:
    numbers = EVERY_BF16
    if form is E2M1:  # which has no NaN
        numbers = numbers[~np.isnan(numbers)]
    theirs = their_codes(form, numbers)

    ours = form.encode(numbers)

    is_nan = np.isnan(numbers)
    assert (ours[~is_nan] == theirs[~is_nan]).all()
    assert np.isnan(form.decode(ours[is_nan])).all()


@each_format
@given(seed=st.integers(0, 2**32))
def test_any_float32_is_converted_as_ml_dtypes_does(form: Minifloat, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 1 << 32, 4096, dtype=np.uint32)
    numbers = words.view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    near = np.concatenate([form.values[np.isfinite(form.values)][:4096], form.values[:256]])
    near = near[np.isfinite(near)]
    between = np.nextafter((near[1:] + near[:-1]) / 2, np.float32(0))  # just below each half
    tried = np.concatenate([numbers, between, (near[1:] + near[:-1]) / 2])

    codes = form.encode(tried)
    assert (codes == their_codes(form, tried)).all()
    fast, slow = form.rounded(tried[np.abs(tried) < form.largest]), form.decode(codes)
    assert (fast.view(np.uint32) == slow[np.abs(tried) < form.largest].view(np.uint32)).all()


@each_format
def test_a_saturated_conversion_stops_at_the_largest_number(form: Minifloat) -> None:
    huge = np.array([np.inf, -np.inf, 3e38, form.largest], dtype=np.float32)

    stopped = form.rounded(huge, too_large=TooLarge.SATURATE)

    expected = [form.largest, -form.largest, min(form.largest, 3e38), form.largest]
    assert stopped.tolist() == np.array(form.rounded(np.float32(expected))).tolist()
    assert np.isfinite(stopped).all()


def test_a_nan_that_a_format_lacks_is_refused() -> None:
    with pytest.raises(AssertionError, match="E2M1 has no NaN"):
        E2M1.encode(np.array([np.nan]))


def test_the_fast_rounding_of_training_has_the_same_bits() -> None:
    words = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    numbers = words.view(np.float32)
    numbers = numbers[~np.isnan(numbers)]

    assert (BF16.rounded(numbers) == round_to_bfloat16(numbers.copy())).all()


class TestStochasticRounding:
    def test_by_hand(self) -> None:
        # A quarter of the way from 2 to 3: the first quarter of the random words rounds up.
        quarter = 1 << 30
        random = np.array([0, quarter - 1, quarter, 2**32 - 1], dtype=np.uint32)
        numbers = np.full(4, -2.25, dtype=np.float32)

        assert E2M1.rounded(numbers, random=random).tolist() == [-3.0, -3.0, -2.0, -2.0]

    @each_format
    def test_a_number_of_the_format_stays_for_any_random_word(self, form: Minifloat) -> None:
        numbers = form.values[np.isfinite(form.values)]
        for word in (0, 2**32 - 1):
            random = np.full(numbers.shape, word, dtype=np.uint32)
            assert (form.rounded(numbers, random=random) == numbers).all()

    @each_format
    @given(seed=st.integers(0, 2**32))
    def test_it_is_one_of_the_two_neighbours_and_right_in_the_mean(
        self, form: Minifloat, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        number = np.float32(rng.uniform(0.01, 0.9) * min(form.largest, 1e4))
        finite = np.sort(form.values[np.isfinite(form.values) & (form.values >= 0)])
        above = int(np.searchsorted(finite, number))
        low, high = float(finite[above - 1]), float(finite[above])
        words = (np.arange(4096, dtype=np.uint64) << np.uint64(20)).astype(np.uint32)

        rounded = form.rounded(np.full(4096, number), random=words)

        assert set(rounded.tolist()) <= {low, high}
        assert abs(rounded.mean(dtype=np.float64) - number) <= (high - low) / 4096
