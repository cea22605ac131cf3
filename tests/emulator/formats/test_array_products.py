from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.formats import array_products
from emulator.formats.array_products import array_product, array_product_slowly
from emulator.formats.minifloat import BF16
from emulator.formats.mx_blocks import MXFP4, MXFP8, ScaleRule, quantise

# Inner and outer widths of the products in this repository, wider ones and odd ones.
WIDTHS = [(112, 256), (32, 112), (16, 112), (112, 1024), (600, 201), (1100, 130), (7, 3), (1, 1)]


def nearest_float32(exact: Fraction) -> np.float32:
    """Rounded half to even, once: by comparing with float32's neighbours."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf)]
    tried = [guess, *(each for each in near if np.isfinite(each))]
    return min(
        tried,
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) % 2),
    )


def one_sum(row: np.ndarray, column: np.ndarray, depth: int) -> np.float32:
    """One output in exact arithmetic, rounded where the array rounds."""
    total = np.float32(0)
    for start in range(0, len(row), depth):
        running = np.float32(0)
        for left, right in zip(
            row[start : start + depth], column[start : start + depth], strict=True
        ):
            product = Fraction(float(left)) * Fraction(float(right))
            running = nearest_float32(Fraction(float(running)) + product)
        total = running if start == 0 else np.float32(total + running)
    return total


def operands(seed: int, rows: int, inner: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """MXFP8 rows and MXFP4 weights, of blocks whose scales differ by up to 2^20."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, inner)) * 2.0 ** rng.integers(-10, 10, (rows, inner))
    w = rng.standard_normal((columns, inner)) * 2.0 ** rng.integers(-10, 10, (columns, inner))
    return (
        quantise(x.astype(np.float32), MXFP8, ScaleRule.CHIP).numbers(),
        quantise(w.astype(np.float32), MXFP4, ScaleRule.OCP).numbers().T,
    )


def test_a_sum_is_rounded_after_each_product_and_tiles_are_added_last() -> None:
    """2^24 + 1 is no float32: ones beside 2^24 are lost in its tile, and kept in another."""
    rows = np.array([[2.0**24, 1.0, 1.0, 1.0]], dtype=np.float32)
    ones = np.ones((4, 1), dtype=np.float32)

    assert array_product_slowly(rows, ones, depth=4).tolist() == [[2.0**24]]
    assert array_product_slowly(rows, ones, depth=2).tolist() == [[2.0**24 + 2]]
    assert array_product(rows, ones, depth=4).tolist() == [[2.0**24]]
    assert array_product(rows, ones, depth=2).tolist() == [[2.0**24 + 2]]


def test_a_product_is_not_rounded_before_it_is_added() -> None:
    """2^-150 alone rounds to 0; with the smallest float32 twice it is a tie beyond, to even."""
    least = np.float32(2**-149)
    rows = np.array([[least, 2**-75]], dtype=np.float32)
    weights = np.array([[1.0], [2**-75 + 2**-76]], dtype=np.float32)

    assert array_product_slowly(rows, weights, depth=2).tolist() == [[2 * least]]


@pytest.mark.long
@given(seed=st.integers(0, 2**32), inner=st.integers(1, 40), depth=st.integers(1, 20))
def test_the_slow_reference_is_the_exact_sum_rounded_where_the_array_rounds(
    seed: int, inner: int, depth: int
) -> None:
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.integers(-15, 16, (2, inner)), rng.integers(-75, 20, (2, inner)))
    w = np.ldexp(rng.integers(-15, 16, (inner, 3)), rng.integers(-75, 20, (inner, 3)))
    rows, weights = x.astype(np.float32), w.astype(np.float32)

    product = array_product_slowly(rows, weights, depth=depth)

    for row in range(2):
        for column in range(3):
            expected = one_sum(rows[row], weights[:, column], depth)
            assert product[row, column] == expected


@pytest.mark.long
@pytest.mark.parametrize(("inner", "columns"), WIDTHS)
@pytest.mark.parametrize("depth", [128, 512])
def test_the_fast_product_has_the_bits_of_the_slow_one(
    inner: int, columns: int, depth: int
) -> None:
    rows, weights = operands(inner, 4, inner, columns)
    plain_rows, plain_weights = BF16.rounded(rows * np.float32(1.1)), BF16.rounded(weights / 3)

    for left, right in ((rows, weights), (plain_rows, plain_weights)):
        fast = array_product(left, right, depth=depth)
        assert fast.dtype == np.float32
        assert (fast == array_product_slowly(left, right, depth=depth)).all()


def test_infinities_and_nan_are_sums_like_others() -> None:
    rows, weights = operands(3, 4, 112, 32)
    rows[0, 5], rows[1, 7], rows[2, 3], rows[2, 9] = np.inf, np.nan, 2.0**120, -(2.0**120)
    weights = weights.copy()
    weights[3], weights[9] = 2.0**20, 2.0**20  # beyond float32 on the way

    with np.errstate(over="ignore", invalid="ignore"):
        fast = array_product(rows, weights, depth=512)
        slow = array_product_slowly(rows, weights, depth=512)

    np.testing.assert_array_equal(fast, slow)
    assert np.isnan(fast[1]).all()
    assert np.isinf(fast[0]).any()


def test_the_fast_product_is_the_blas_in_this_repositorys_shapes() -> None:
    for inner, columns in WIDTHS[:4]:
        assert array_products._blas_columns(4, inner, columns) == columns


def test_another_blas_is_found_out_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        product: np.ndarray = left[..., ::-1] @ right[..., ::-1, :]
        return product

    rows, weights = operands(5, 4, 100, 16)
    expected = array_product_slowly(rows, weights, depth=512)
    monkeypatch.setattr(array_products.np, "matmul", backwards)
    array_products._blas_columns.cache_clear()

    try:
        assert array_products._blas_columns(4, 100, 16) == 0
        assert (array_product(rows, weights, depth=512) == expected).all()
    finally:
        array_products._blas_columns.cache_clear()


def test_stacked_matrices_are_multiplied_as_they_are_alone() -> None:
    rows, _ = operands(1, 24, 112, 1)
    tiles = rows.reshape(3, 2, 4, 112)
    weights = np.stack([operands(seed, 1, 112, 32)[1] for seed in range(3)])

    product = array_product(tiles, weights[:, None], depth=512)

    for expert in range(3):
        for tile in range(2):
            alone = array_product(tiles[expert, tile], weights[expert], depth=512)
            assert (product[expert, tile] == alone).all()
