import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.formats.minifloat import BF16
from emulator.formats.structured_sparsity import (
    FOUR_OF_8,
    FOUR_OF_16,
    SparsePattern,
    compress,
    sparse_product,
    sparse_product_slowly,
)

each_pattern = pytest.mark.parametrize("pattern", [FOUR_OF_8, FOUR_OF_16])


def test_four_of_eight_by_hand() -> None:
    column = np.array([[1, -9, 3, 0, 5, 3, -7, 3]], dtype=np.float32).T

    sparse = compress(column, FOUR_OF_8)

    assert sparse.places[0, :, 0].tolist() == [1, 2, 4, 6]  # of the three 3s the first
    assert sparse.values[0, :, 0].tolist() == [-9, 3, 5, -7]
    assert sparse.dense()[:, 0].tolist() == [0, -9, 3, 0, 5, 0, -7, 0]


def test_a_tile_has_as_many_rows_as_fill_the_array_with_kept_weights() -> None:
    assert (FOUR_OF_8.depth, FOUR_OF_16.depth) == (256, 512)


@each_pattern
@given(seed=st.integers(0, 2**32), inner=st.integers(1, 100), columns=st.integers(1, 9))
def test_of_each_group_the_largest_are_kept(
    pattern: SparsePattern, seed: int, inner: int, columns: int
) -> None:
    weights = np.random.default_rng(seed).standard_normal((inner, columns)).astype(np.float32)
    rounded = BF16.rounded(weights)

    dense = compress(weights, pattern).dense()

    assert dense.shape == weights.shape
    assert ((dense == 0) | (dense == rounded)).all()
    for start in range(0, inner, pattern.of):
        group, all_of_it = (each[start : start + pattern.of] for each in (dense, rounded))
        kept = min(pattern.kept, len(group))
        assert (np.count_nonzero(group, axis=0) <= kept).all()
        largest = np.sort(np.abs(all_of_it), axis=0)[-kept:]
        assert (np.sort(np.abs(group), axis=0)[-kept:] == largest).all()


@each_pattern
@given(seed=st.integers(0, 2**32))
def test_a_pruned_matrix_is_compressed_without_loss(pattern: SparsePattern, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((2, 64, 8)).astype(np.float32)
    pruned = compress(weights, pattern).dense()

    assert (compress(pruned, pattern).dense() == pruned).all()


@each_pattern
@pytest.mark.parametrize("inner", [5, 64, 112, 600])
def test_the_fast_product_has_the_bits_of_the_kept_weights_alone(
    pattern: SparsePattern, inner: int
) -> None:
    rng = np.random.default_rng(inner)
    rows = BF16.rounded((rng.standard_normal((4, inner)) * 30).astype(np.float32))
    sparse = compress(rng.standard_normal((inner, 48)).astype(np.float32), pattern)

    product = sparse_product(rows, sparse)

    assert (product == sparse_product_slowly(rows, sparse)).all()
