from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.figure import Figure
from emulator.specs.model import Sparsity
from emulator.specs.models import MODELS
from emulator.specs.weight_format import WeightFormat
from emulator.timing.product_rate import ProductRate, check_formats, flops_per_ns, product_rate

SPARSE = replace(
    TRAINIUM3,
    tensor_sparse_flops_per_s=Figure(value=2.5e15, unit="FLOP/s", source="a test"),
)
PLAIN_ONLY = replace(TRAINIUM3, tensor_fp8_flops_per_s=None, tensor_fp4_flops_per_s=None)
FP8_ONLY = replace(TRAINIUM3, tensor_fp4_flops_per_s=None)


@pytest.mark.parametrize(
    ("storage", "chip", "rate"),
    [
        (WeightFormat.BF16, TRAINIUM3, ProductRate.PLAIN),
        (WeightFormat.FP32, TRAINIUM3, ProductRate.PLAIN),
        (WeightFormat.FP8_BLOCK128, TRAINIUM3, ProductRate.FP8),
        (WeightFormat.MXFP8, TRAINIUM3, ProductRate.FP8),
        (WeightFormat.MXFP4, TRAINIUM3, ProductRate.FP4),
        (WeightFormat.NVFP4, TRAINIUM3, ProductRate.FP4),
        (WeightFormat.MXFP4, FP8_ONLY, ProductRate.FP8),
        (WeightFormat.FP8_BLOCK128, PLAIN_ONLY, ProductRate.PLAIN),
        (WeightFormat.MXFP4, PLAIN_ONLY, ProductRate.PLAIN),
    ],
)
def test_weights_run_at_their_own_rate_or_the_next_wider_one(
    storage: WeightFormat, chip: object, rate: ProductRate
) -> None:
    assert product_rate(storage, chip, Sparsity.DENSE) is rate  # type: ignore[arg-type]


def test_only_16_bit_weights_with_structured_zeros_run_at_the_sparse_rate() -> None:
    structured = Sparsity.STRUCTURED

    assert product_rate(WeightFormat.BF16, SPARSE, structured) is ProductRate.SPARSE
    assert product_rate(WeightFormat.FP32, SPARSE, structured) is ProductRate.PLAIN
    assert product_rate(WeightFormat.FP8_BLOCK128, SPARSE, structured) is ProductRate.FP8
    assert flops_per_ns(SPARSE, "bf16").tolist() == pytest.approx(
        [629_145.6, 2.5e6, 2_516_582.4, 2_516_582.4]
    )


def test_weights_that_a_chip_cannot_hold_are_refused_with_what_it_can() -> None:
    model = MODELS["deepseek-r1"]
    check_formats(model, TRAINIUM3)
    with pytest.raises(ConfigError, match=r"precision=nvfp4: expected mxfp4, fp8 or bf16"):
        check_formats(model.at_precision("nvfp4"), TRAINIUM3)
    check_formats(model.at_precision("nvfp4"), replace(TRAINIUM3, maker="NVIDIA"))


def test_structured_zeros_are_refused_where_no_rate_is_published_for_them() -> None:
    model = replace(MODELS["llama-3.1-8b"], sparsity=Sparsity.STRUCTURED)
    dense_only = replace(TRAINIUM3, tensor_sparse_flops_per_s=None)

    with pytest.raises(ConfigError, match=r"sparsity=structured: expected dense on trainium3"):
        check_formats(model, dense_only)
    check_formats(model, SPARSE)
