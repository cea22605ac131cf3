import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.weight_format import WeightFormat


@pytest.mark.parametrize(
    ("storage", "expected_bytes"),
    [
        (WeightFormat.FP32, 4 * 130 * 70),
        (WeightFormat.BF16, 2 * 130 * 70),
        (WeightFormat.FP8_BLOCK128, 130 * 70 + 4 * 2 * 1),  # two blocks of rows, one of columns
        (WeightFormat.MXFP4, 130 * (35 + 3)),  # 70 half bytes and three scales a row
    ],
)
def test_a_matrix_of_partial_blocks_by_hand(storage: WeightFormat, expected_bytes: int) -> None:
    assert storage.matrix_bytes(130, 70) == expected_bytes


def test_whole_blocks_of_mxfp4_take_four_and_a_quarter_bits_each() -> None:
    assert WeightFormat.MXFP4.matrix_bytes(3, 64) * 8 == 3 * 64 * 4.25


@given(st.sampled_from(WeightFormat), st.integers(1, 300), st.integers(1, 300))
def test_a_smaller_format_never_takes_more_and_more_rows_never_less(
    storage: WeightFormat, rows: int, columns: int
) -> None:
    held = storage.matrix_bytes(rows, columns)

    assert held <= WeightFormat.FP32.matrix_bytes(rows, columns) + 4
    assert held < storage.matrix_bytes(rows + 1, columns)


def test_the_formats_that_are_timed_only_are_those_below_two_bytes() -> None:
    for storage in WeightFormat:
        assert storage.is_low_precision == (storage.matrix_bytes(128, 128) < 2 * 128 * 128)


def test_every_format_is_described() -> None:
    assert len({storage.described for storage in WeightFormat}) == len(WeightFormat)
