from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.timing.matrix_time import contraction_rows, moving_rows, output_columns, tile_macs

ENGINE = TRAINIUM3.matrix


def test_few_rows_cost_as_much_as_the_smallest_issue_and_none_cost_nothing() -> None:
    assert moving_rows(ENGINE, np.array([0.0, 1.0, 64.0, 65.0])).tolist() == [0, 64, 64, 65]


@pytest.mark.parametrize(
    ("contraction", "taken"),
    [(128, 128), (129, 128 + 32), (1, 32), (32, 32), (33, 64), (64, 64), (65, 128), (200, 256)],
)
def test_a_short_contraction_shares_the_array_by_its_sub_arrays(
    contraction: int, taken: int
) -> None:
    assert contraction_rows(ENGINE, np.array(float(contraction))) == taken


def test_block_scaled_products_contract_512_elements_at_once() -> None:
    rows = contraction_rows(ENGINE, np.array([2_048.0, 2_100.0, 200.0]), mx=True)

    assert rows.tolist() == [2_048, 2_048 + 128, 256]


def test_an_array_without_sub_arrays_takes_whole_tiles() -> None:
    whole = replace(ENGINE, sub_arrays=replace(ENGINE.sub_arrays, value=1))

    assert contraction_rows(whole, np.array([1.0, 129.0])).tolist() == [128, 256]


def test_a_tile_that_is_not_full_costs_as_much_as_a_full_one_by_hand() -> None:
    # 768 columns over four cores are 192 each: two tiles of outputs, and whole tiles to contract
    assert tile_macs(ENGINE, contraction=2_048, outputs=192) == 2_048 * 256
    assert tile_macs(ENGINE, contraction=192, outputs=2_048) == (128 + 64) * 2_048


def slow_tile_macs(contraction: int, outputs: int, *, tile: int) -> int:
    """Tile by tile: a last one takes the smallest of a whole, half or quarter that holds it."""
    macs = 0
    for _column in range(0, outputs, 128):
        left = contraction
        while left > 0:
            macs += 128 * min(
                part for part in (tile // 4, tile // 2, tile) if part >= min(left, tile)
            )
            left -= tile
    return macs


@given(st.integers(1, 3_000), st.integers(1, 3_000), st.booleans())
def test_tiles_equal_counting_them_one_by_one(contraction: int, outputs: int, mx: bool) -> None:
    macs = tile_macs(ENGINE, contraction=contraction, outputs=outputs, mx=mx)

    assert macs == slow_tile_macs(contraction, outputs, tile=512 if mx else 128)
    assert macs >= contraction * outputs
    assert output_columns(ENGINE, np.array(float(outputs))) - outputs < 128
