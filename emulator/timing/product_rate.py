"""The matrix engine's rate for a product, by the format of its weights.

FP8 or FP4 weights are multiplied as they are, with quantised activations, where the engine can;
else in the next wider supported format. Trainium3 turns FP4 into MXFP8 before the array (AWS Neuron
SDK docs, trainium3_arch.rst), at one rate for both: 4-bit weights with 8-bit activations are the
intended way to decode (SemiAnalysis, AWS Trainium3 Deep Dive).
"""

from enum import IntEnum

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.model import ModelSpec, Sparsity
from emulator.specs.weight_format import WeightFormat
from emulator.units import NS_PER_S


class ProductRate(IntEnum):
    """PLAIN: the model's dtype. SPARSE: 16 bits with structured sparsity."""

    PLAIN = 0
    SPARSE = 1
    FP8 = 2
    FP4 = 3

    @property
    def quantised(self) -> bool:
        """Whether activations are converted to a narrower format first."""
        return self in (ProductRate.FP8, ProductRate.FP4)


def product_rate(storage: WeightFormat, chip: ChipSpec, sparsity: Sparsity) -> ProductRate:
    """The rate of products with weights in `storage`."""
    if storage.bits_per_element <= 4 and chip.tensor_fp4_flops_per_s is not None:
        return ProductRate.FP4
    if storage.is_low_precision and chip.tensor_fp8_flops_per_s is not None:
        return ProductRate.FP8
    if sparsity is Sparsity.STRUCTURED and storage is WeightFormat.BF16:
        return ProductRate.SPARSE
    return ProductRate.PLAIN


def cache_rate(model: ModelSpec, chip: ChipSpec) -> ProductRate:
    """The rate of products with a latent's cache as stored.

    8 bits are multiplied as they are, with quantised queries and weights (as in the FP8 MLA kernels
    of TensorRT-LLM and FlashMLA); anything else in the model's dtype.
    """
    narrow = model.kv_bytes_per_element == 1 and chip.tensor_fp8_flops_per_s is not None
    return ProductRate.FP8 if narrow else ProductRate.PLAIN


def flops_per_ns(chip: ChipSpec, dtype: str) -> Float64s:
    """Rates [rates], plain products in `dtype`; a missing sparse rate is the plain one."""
    sparse = chip.tensor_sparse_flops_per_s
    plain = chip.tensor_flops_per_s(dtype)
    rates = (
        plain,
        plain if sparse is None else sparse.value,
        chip.tensor_flops_per_s("fp8"),
        chip.tensor_flops_per_s("fp4"),
    )
    return np.array(rates) / NS_PER_S


def products_by_rate(dtype: str) -> dict[ProductRate, str]:
    """The format that each rate multiplies in, where plain products are in `dtype`."""
    return {
        ProductRate.PLAIN: dtype,
        ProductRate.SPARSE: "bf16",
        ProductRate.FP8: "fp8",
        ProductRate.FP4: "fp4",
    }


def check_formats(model: ModelSpec, chip: ChipSpec) -> None:
    """Raise ConfigError for weights that `chip` cannot hold in their format.

    NVFP4 is NVIDIA's: other engines neither multiply nor convert it. A sparse rate is for 16-bit
    products, on chips that publish one.
    """
    for storage in (model.projection_format, model.expert_format):
        if storage is WeightFormat.NVFP4 and chip.maker != "NVIDIA":
            raise ConfigError("precision", storage.value, f"mxfp4, fp8 or bf16 on {chip.name}")
    if model.sparsity is Sparsity.STRUCTURED and chip.tensor_sparse_flops_per_s is None:
        raise ConfigError("sparsity", model.sparsity.value, f"dense on {chip.name}")
