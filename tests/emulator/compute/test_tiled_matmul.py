import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.tiled_matmul import TILE_ROWS, grouped_matmul, padded_rows, tiled_matmul

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


class TestGroups:
    # Inner and columns of a head group's projections in and out, and odd ones. The last is one
    # whose larger products this host's BLAS was seen to compute to other bits.
    WIDTHS = ((112, 64), (32, 112), (64, 144), (128, 40), (7, 3), (1, 1), (1024, 112))

    def test_two_groups_by_hand(self) -> None:
        x = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
        weights = np.array([[[1, 0, 2], [0, 1, 3]], [[0, 1, 0], [2, 0, 0]]], dtype=np.float32)

        both = grouped_matmul(x, weights)
        each = grouped_matmul(np.array([x, 10 * x]), weights)

        first, second = [[1, 2, 8], [3, 4, 18], [5, 6, 28]], [[4, 1, 0], [8, 3, 0], [12, 5, 0]]
        assert both.tolist() == [first, second]
        assert each.tolist() == [first, (10 * both[1]).tolist()]

    @pytest.mark.parametrize(("inner", "columns"), WIDTHS)
    @pytest.mark.parametrize("own_rows", [False, True])
    def test_a_row_of_a_group_has_the_bits_that_it_has_among_any_rows_and_groups(
        self, inner: int, columns: int, own_rows: bool
    ) -> None:
        rng = np.random.default_rng(inner)
        groups, rows = 6, 11
        weights = normal(rng, groups, inner, columns)
        x = normal(rng, groups, rows, inner) if own_rows else normal(rng, rows, inner)
        whole = grouped_matmul(x, weights)
        assert whole.shape == (groups, rows, columns)

        for first in range(groups):
            for end in range(first + 1, groups + 1):
                share = x[first:end] if own_rows else x
                part = grouped_matmul(share, weights[first:end].copy())
                assert (part == whole[first:end]).all(), (first, end)
        for row in range(rows):
            assert (grouped_matmul(x[..., row : row + 1, :], weights)[:, 0] == whole[:, row]).all()

    @given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2**32))
    def test_each_group_is_multiplied_as_it_is_alone(
        self, rows: int, groups: int, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        x, weights = normal(rng, rows, groups, 32), normal(rng, groups, 32, 48)

        by_group = x.transpose(1, 0, 2)  # rows that lie apart in memory, as attention leaves them
        product = grouped_matmul(by_group, weights)

        for group in range(groups):
            alone = tiled_matmul(x[:, group].copy(), weights[group])
            assert (product[group] == alone).all()
