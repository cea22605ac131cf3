import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from emulator.compute.mixed_precision import Precision, as_operand, round_to_bfloat16


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1.0 + 2**-7, 1.0 + 2**-7),  # the last bit that is kept
        (1.0 + 2**-8, 1.0),  # in the middle: to the even neighbour, down
        (1.0 + 3 * 2**-8, 1.0 + 2**-6),  # in the middle: to the even neighbour, up
        (1.0 + 2**-8 + 2**-20, 1.0 + 2**-7),
        (-1.0 - 2**-8 - 2**-20, -1.0 - 2**-7),
        (3.4e38, np.inf),
        (-np.inf, -np.inf),
        (0.0, 0.0),
    ],
)
def test_a_value_goes_to_the_nearest_and_from_the_middle_to_the_even(
    value: float, rounded: float
) -> None:
    assert round_to_bfloat16(np.array([value], dtype=np.float32))[0] == rounded


def test_nan_stays_nan() -> None:
    assert np.isnan(round_to_bfloat16(np.array([np.nan, -np.nan], dtype=np.float32))).all()


@given(arrays(np.uint32, st.integers(0, 50)))
def test_any_bits_round_as_ml_dtypes_rounds_them(words: np.ndarray) -> None:
    values = words.view(np.float32)
    values = values[~np.isnan(values)]

    rounded = round_to_bfloat16(values.copy())

    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (rounded.view(np.uint32) == expected.view(np.uint32)).all()


def test_more_than_one_chunk_is_rounded_whole_and_in_place() -> None:
    values = np.random.default_rng(0).standard_normal((3, 50_000)).astype(np.float32)
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)

    assert round_to_bfloat16(values) is values
    assert (values == expected).all()


def test_an_array_that_would_be_copied_is_refused() -> None:
    with pytest.raises(AssertionError, match="copy"):
        round_to_bfloat16(np.zeros((4, 4), dtype=np.float32).T[:2])


def test_only_bf16_rounds_an_operand() -> None:
    third = np.array([1 / 3], dtype=np.float32)

    assert as_operand(third.copy(), Precision.FP32)[0] == third[0]
    assert as_operand(third.copy(), Precision.BF16)[0] == np.float32(0.333984375)
