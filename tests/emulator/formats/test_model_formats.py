import numpy as np
import pytest

from emulator.formats.minifloat import BF16
from emulator.formats.model_formats import FP32_MODEL, ModelFormats
from emulator.formats.product_formats import fp8_cache, product_format
from emulator.specs.models import MODELS
from emulator.specs.weight_format import WeightFormat


@pytest.mark.parametrize(
    ("kv_bytes", "kept"), [(4, lambda numbers: numbers), (2, BF16.rounded), (1, fp8_cache)]
)
def test_keys_and_values_are_rounded_to_their_bytes(kv_bytes: int, kept) -> None:
    numbers = np.random.default_rng(0).standard_normal(500).astype(np.float32)

    formats = ModelFormats(kv_bytes_per_element=kv_bytes)

    assert (formats.cached(numbers) == kept(numbers)).all()


def test_by_default_nothing_is_rounded() -> None:
    fp32 = product_format(WeightFormat.FP32)

    assert FP32_MODEL.plain_products is FP32_MODEL.projection_products is fp32
    assert FP32_MODEL.expert_products is fp32


def test_each_kind_of_matrix_has_the_products_of_its_own_format() -> None:
    formats = ModelFormats.of_model(MODELS["gpt-oss-120b"])

    assert formats.plain_products is product_format(WeightFormat.BF16)
    assert formats.projection_products is product_format(WeightFormat.BF16)
    assert formats.expert_products is product_format(WeightFormat.MXFP4)
