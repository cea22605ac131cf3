import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.tiled_matmul import TILE_ROWS, padded_rows, tiled_matmul

# Inner and outer widths of the products in this repository, and odd ones.
WIDTHS = [(112, 256), (128, 112), (16, 112), (112, 1024), (64, 201), (7, 3), (1, 1), (2048, 5)]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def test_a_product_by_hand() -> None:
    x = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    weight = np.array([[1, 0, 2], [0, 1, 3]], dtype=np.float32)

    assert tiled_matmul(x, weight).tolist() == [[1, 2, 8], [3, 4, 18], [5, 6, 28]]


def test_rows_are_padded_to_whole_tiles() -> None:
    assert [padded_rows(rows) for rows in range(1, 10)] == [4, 4, 4, 4, 8, 8, 8, 8, 12]
    assert padded_rows(0) == 0


@pytest.mark.parametrize(("inner", "columns"), WIDTHS)
def test_the_product_is_the_mathematical_one_within_float32(inner: int, columns: int) -> None:
    rng = np.random.default_rng(inner)
    x, weight = normal(rng, 33, inner), normal(rng, inner, columns)
    exact = x.astype(np.float64) @ weight.astype(np.float64)

    product = tiled_matmul(x, weight)

    assert product.dtype == np.float32
    scale = np.abs(x).astype(np.float64) @ np.abs(weight)
    assert (np.abs(product - exact) <= 1e-6 * scale).all()


@pytest.mark.parametrize(("inner", "columns"), WIDTHS)
def test_a_row_alone_has_the_bits_that_it_has_in_any_batch_at_any_place(
    inner: int, columns: int
) -> None:
    rng = np.random.default_rng(columns)
    weight = normal(rng, inner, columns)
    row = normal(rng, 1, inner)
    alone = tiled_matmul(row, weight)[0]

    for rows in range(1, 3 * TILE_ROWS + 1):
        for place in range(rows):
            batch = normal(rng, rows, inner)
            batch[place] = row
            assert (tiled_matmul(batch, weight)[place] == alone).all(), (rows, place)


@given(st.integers(1, 70), st.integers(0, 2**32))
def test_any_cut_of_a_batch_gives_the_bits_of_the_whole(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, rows, 112), normal(rng, 112, 32)
    cut = int(rng.integers(0, rows + 1))

    parts = [tiled_matmul(part, weight) for part in (x[:cut], x[cut:])]

    assert (np.concatenate(parts) == tiled_matmul(x, weight)).all()


def test_a_view_with_gaps_is_multiplied_as_its_copy_is() -> None:
    rng = np.random.default_rng(0)
    x, weight = normal(rng, 11, 3, 16), normal(rng, 16, 8)

    assert (tiled_matmul(x[:, 1], weight) == tiled_matmul(x[:, 1].copy(), weight)).all()
