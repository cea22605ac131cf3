import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.tiled_matmul import TILE_ROWS
from emulator.errors import ConfigError
from emulator.formats.array_products import array_product_slowly
from emulator.formats.fp8_blocks import fp8_block_numbers
from emulator.formats.minifloat import BF16
from emulator.formats.mx_blocks import MXFP4, MXFP8, ScaleRule, quantise
from emulator.formats.product_formats import fp8_cache, product_format
from emulator.specs.weight_format import WeightFormat

COMPUTED = [each for each in WeightFormat if each is not WeightFormat.NVFP4]


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_small_product_with_mxfp4_weights_by_hand() -> None:
    """The weights' block has scale 2^-1: 3.2 is 6.4 of it and becomes 6, 0.4 is 0.8 and becomes 1.

    The rows' block has scale 2^-7 (2 x 2^(0 - 8)), by which 1.04 becomes 1.0.
    """
    products = product_format(WeightFormat.MXFP4)
    weights = products.store(np.array([[3.2], [0.4]], dtype=np.float32))
    rows = np.array([[1.04, 0.5]], dtype=np.float32)

    assert weights.tolist() == [[3.0], [0.5]]
    assert products.multiply(rows, weights).tolist() == [[1.0 * 3.0 + 0.5 * 0.5]]


@pytest.mark.long
def test_w4a8_is_mxfp8_rows_by_mxfp4_weights_in_tiles_of_512() -> None:
    x, w = normal(0, 4, 1100), normal(1, 1100, 24)
    rows = quantise(BF16.rounded(x), MXFP8, ScaleRule.CHIP).numbers()
    weights = quantise(w.T, MXFP4, ScaleRule.OCP).numbers().T
    products = product_format(WeightFormat.MXFP4)

    product = products.multiply(x, products.store(w))

    assert (product == array_product_slowly(rows, weights, depth=512)).all()


def test_bf16_is_summed_in_tiles_of_128() -> None:
    x, w = normal(0, 4, 300), normal(1, 300, 24)
    products = product_format(WeightFormat.BF16)

    product = products.multiply(x, products.store(w))

    expected = array_product_slowly(BF16.rounded(x), BF16.rounded(w), depth=128)
    assert (product == expected).all()


def test_fp32_is_left_as_it_is() -> None:
    x, w = normal(0, 4, 112), normal(1, 112, 24)
    products = product_format(WeightFormat.FP32)

    assert products.store(w) is w
    assert (products.multiply(x, w) == np.matmul(x, w)).all()


def test_nvfp4_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"quantization=nvfp4: .*every 16 .*blocks of 32"):
        product_format(WeightFormat.NVFP4)


@pytest.mark.parametrize("storage", COMPUTED)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 3), place=st.integers(0, TILE_ROWS - 1))
def test_a_row_has_the_same_bits_among_any_others(
    storage: WeightFormat, seed: int, rows: int, place: int
) -> None:
    products = product_format(storage)
    weights = products.store(normal(seed, 112, 32))
    row = normal(seed + 1, 112)
    alone = np.zeros((TILE_ROWS, 112), dtype=np.float32)
    alone[0] = row
    among = normal(seed + 2, rows, TILE_ROWS, 112)
    among[-1, place] = row

    product = products.multiply(among, weights)

    assert (product[-1, place] == products.multiply(alone, weights)[0]).all()


@pytest.mark.parametrize("storage", COMPUTED)
def test_errors_grow_as_bits_are_fewer(storage: WeightFormat) -> None:
    x, w = normal(0, 4, 512), normal(1, 512, 64)
    products = product_format(storage)
    exact = x.astype(np.float64) @ w

    product = products.multiply(x, products.store(w))

    error = np.sqrt(np.square(product - exact).mean() / np.square(exact).mean())
    least, most = {32: (0, 1e-6), 16: (1e-4, 5e-3), 8: (0.01, 0.06), 4: (0.06, 0.25)}[
        storage.bits_per_element
    ]
    assert least <= error <= most


class TestFp8Blocks:
    def test_each_block_of_128_has_its_own_scale(self) -> None:
        weights = np.zeros((130, 129), dtype=np.float32)
        weights[0, 0], weights[1, 0] = 896.0, 1.0  # scale 2
        weights[129, 128] = 1e-3
        numbers = fp8_block_numbers(weights)

        assert numbers[:2, 0].tolist() == [896.0, 1.0]
        assert numbers[129, 128] == pytest.approx(1e-3)
        assert np.count_nonzero(numbers) == 3

    def test_numbers_are_e4m3_times_the_scale(self) -> None:
        weights = normal(3, 128, 128)
        scale = np.abs(weights).max() / np.float32(448)
        theirs = (weights / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale

        assert (fp8_block_numbers(weights) == theirs).all()

    @pytest.mark.parametrize("units", [0, 1, 71, 223, 225, 671, 673, 10_000, 1 << 23])
    def test_blocks_near_float32s_smallest_number_stay_numbers_and_zeros_zeros(
        self, units: int
    ) -> None:
        weights = np.zeros((4, 4), dtype=np.float32)
        weights[0, :2] = np.array([1.0, -1.0], dtype=np.float32) * np.float32(units * 2.0**-149)

        numbers = fp8_block_numbers(weights)

        assert (numbers[weights == 0] == 0).all()
        assert (np.abs(numbers - weights) <= np.abs(weights) / 3).all()
        assert np.isfinite(product_format(WeightFormat.FP8_BLOCK128).store(weights)).all()


def test_a_cache_in_fp8_is_clamped_at_448() -> None:
    numbers = np.array([1e9, -449.0, 448.0, 17.0, 1e-3], dtype=np.float32)

    assert fp8_cache(numbers).tolist() == [448.0, -448.0, 448.0, 16.0, 2**-9]
