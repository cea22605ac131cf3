"""The products of a matrix by its storage format: how operands are rounded and sums made.

Weights are rounded when they are loaded and kept as the float32 numbers that their codes mean;
activations are rounded before each product. Both are exact for the array's sums (array_products).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from emulator.arrays import Float32s
from emulator.errors import ConfigError
from emulator.formats.array_products import PARTITIONS, array_product
from emulator.formats.fp8_blocks import fp8_block_numbers
from emulator.formats.minifloat import BF16, E4M3, TooLarge
from emulator.formats.mx_blocks import MXFP4, MXFP8, MxFormat, ScaleRule, rounded_to_blocks
from emulator.specs.weight_format import WeightFormat

_MX_DEPTH: Final = 4 * PARTITIONS
"""A processing element multiplies 4 MX elements at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFormat:
    """How products with weights in one storage format are made.

    Attributes:
        store: weights [..., inner, columns] as the format has them, float32.
        round_rows: activations [..., inner] likewise.
        multiply_rounded: rows [..., height, inner] by weights [..., inner, columns].
        columns_together: the least, and a divisor, of the columns that a matrix that is converted
            by parts should be cut into; their number may change the last bits of FP32's alone.
    """

    store: Callable[[Float32s], Float32s]
    round_rows: Callable[[Float32s], Float32s]
    multiply_rounded: Callable[[Float32s, Float32s], Float32s]
    columns_together: int = 64  # half or twice takes up to 1.5 or 5 times as long (DECISIONS.md)

    def multiply(self, rows: Float32s, weights: Float32s) -> Float32s:
        """Round `rows` [..., height, inner] and multiply by stored `weights`, which broadcast."""
        return self.multiply_rounded(self.round_rows(rows), weights)


def _unchanged(numbers: Float32s) -> Float32s:
    return numbers


def _matmul(rows: Float32s, weights: Float32s) -> Float32s:
    product: Float32s = np.matmul(rows, weights)
    return product


def _plain_array(rows: Float32s, weights: Float32s) -> Float32s:
    return array_product(rows, weights, depth=PARTITIONS)


def _mx_array(rows: Float32s, weights: Float32s) -> Float32s:
    return array_product(rows, weights, depth=_MX_DEPTH)


def _mx_weights(form: MxFormat) -> Callable[[Float32s], Float32s]:
    def store(weights: Float32s) -> Float32s:
        by_column = rounded_to_blocks(np.swapaxes(weights, -1, -2), form, ScaleRule.OCP)
        return np.ascontiguousarray(np.swapaxes(by_column, -1, -2))

    return store


def _mxfp8_rows(rows: Float32s) -> Float32s:
    """Activations as `quantize_mx` makes them, of BF16."""
    return rounded_to_blocks(BF16.rounded(rows), MXFP8, ScaleRule.CHIP)


def _mx_products(store: Callable[[Float32s], Float32s]) -> ProductFormat:
    return ProductFormat(store=store, round_rows=_mxfp8_rows, multiply_rounded=_mx_array)


_mxfp8_weights: Final = _mx_weights(MXFP8)


def _fp8_weights(weights: Float32s) -> Float32s:
    return _mxfp8_weights(fp8_block_numbers(weights))


FP32_PRODUCTS: Final = ProductFormat(
    store=_unchanged, round_rows=_unchanged, multiply_rounded=_matmul, columns_together=1
)
"""Numbers as they are, added as the host's BLAS does."""

_OF_STORAGE: Final[Mapping[WeightFormat, ProductFormat]] = MappingProxyType(
    {
        WeightFormat.FP32: FP32_PRODUCTS,
        WeightFormat.BF16: ProductFormat(
            store=BF16.rounded, round_rows=BF16.rounded, multiply_rounded=_plain_array
        ),
        WeightFormat.FP8_BLOCK128: _mx_products(_fp8_weights),
        WeightFormat.MXFP8: _mx_products(_mxfp8_weights),
        WeightFormat.MXFP4: _mx_products(_mx_weights(MXFP4)),
    }
)


NO_NVFP4: Final = (
    "NVFP4 has an E4M3 scale for every 16 numbers, and the array multiplies blocks of 32 with an "
    "E8M0 scale"
)


def product_format(storage: WeightFormat) -> ProductFormat:
    """The products of weights in `storage`; raises ConfigError for NVFP4."""
    if storage not in _OF_STORAGE:
        raise ConfigError(
            "quantization",
            storage.value,
            f"mxfp4: {NO_NVFP4}",
        )
    return _OF_STORAGE[storage]


def fp8_cache(numbers: Float32s) -> Float32s:
    """Keys and values as an FP8 cache keeps them: E4M3 without a scale, clamped at 448.

    As vllm-neuron's on Trainium3; attention itself stays as it is.
    """
    return E4M3.rounded(numbers, too_large=TooLarge.SATURATE)
