import pytest

from emulator.errors import ConfigError
from emulator.specs.models import MODELS
from emulator.specs.weight_format import WeightFormat

R1 = MODELS["deepseek-r1"]
LLAMA = MODELS["llama-3.1-70b"]


def test_bf16_stores_two_bytes_of_everything() -> None:
    wide = R1.at_precision("bf16")

    # but of the routers' correction biases, which are in FP32
    assert wide.weight_bytes == 2 * R1.parameters + 2 * R1.moe_layers * R1.experts
    assert R1.parameters == wide.parameters == pytest.approx(671e9, rel=0.001)


def test_fp8_is_how_deepseek_publishes_its_weights() -> None:
    assert R1.at_precision("fp8").weight_bytes == R1.weight_bytes
    assert R1.at_precision("bf16").at_precision("fp8") == R1


@pytest.mark.parametrize(("precision", "bits"), [("mxfp4", 4.25), ("nvfp4", 4.5)])
def test_four_bits_store_the_experts_and_leave_attention_as_it_is(
    precision: str, bits: float
) -> None:
    small = R1.at_precision(precision)

    assert small.expert_bytes == small.expert_parameters * bits / 8
    assert small.projection_format is WeightFormat.FP8_BLOCK128
    experts = R1.moe_layers * R1.experts
    saved = experts * (R1.expert_bytes - small.expert_bytes)
    assert R1.weight_bytes - small.weight_bytes == saved


def test_a_dense_model_has_its_matrices_in_four_bits() -> None:
    small = LLAMA.at_precision("nvfp4")

    assert small.projection_format is WeightFormat.NVFP4
    matrices = small.parameters - small.embedding_parameters
    assert small.weight_bytes == pytest.approx(
        2 * small.embedding_parameters + matrices * 4.5 / 8, rel=1e-3
    )


def test_mxfp8_stores_every_matrix_in_a_byte_and_a_scale_for_every_32() -> None:
    narrow = R1.at_precision("mxfp8")

    assert narrow.expert_bytes == narrow.expert_parameters * 8.25 / 8
    assert narrow.projection_format is WeightFormat.MXFP8
    assert WeightFormat.MXFP8.matrix_bytes(3, 40) == 3 * (40 + 2)


def test_w4a8_stores_projections_in_four_bits_too() -> None:
    small = R1.at_precision("w4a8")

    assert small.expert_bytes == R1.at_precision("mxfp4").expert_bytes
    assert small.projection_format is WeightFormat.MXFP4
    assert LLAMA.at_precision("w4a8") == LLAMA.at_precision("mxfp4")


def test_the_cache_changes_only_where_it_is_told_to() -> None:
    assert R1.at_precision("mxfp4").kv_bytes_per_token == R1.kv_bytes_per_token
    half = R1.at_precision("fp8", kv_bytes_per_element=1)
    assert 2 * half.kv_bytes_per_token == R1.kv_bytes_per_token


def test_another_precision_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"precision=int3: expected one of bf16, fp8, mxfp8, mxfp4"
    ):
        R1.at_precision("int3")


def test_nvfp4_has_a_scale_of_one_byte_for_every_16_elements_by_hand() -> None:
    # 3 rows of 40 elements: 20 bytes and 3 scales each
    assert WeightFormat.NVFP4.matrix_bytes(3, 40) == 3 * (20 + 3)
    assert WeightFormat.NVFP4.matrix_bytes(1, 16) * 8 / 16 == 4.5
