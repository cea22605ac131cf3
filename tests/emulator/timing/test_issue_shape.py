from dataclasses import replace

import pytest

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.models import MODELS
from emulator.timing.issue_shape import IssueShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.product_rate import ProductRate

QWEN = MODELS["qwen3-30b-a3b"]  # 2,048 wide, 32 heads and 4 key heads of 128, experts of 768


def test_products_of_qwen3_30b_a3b_on_one_core_fill_their_tiles() -> None:
    shape = IssueShape.of(QWEN, TRAINIUM3, tp=1, cores=1)
    weights = layer_weights(QWEN)

    assert shape.query.macs == weights.query.macs
    assert shape.kv.macs == 2 * 2_048 * 512
    assert shape.expert.macs == weights.expert.macs
    assert shape.prompts.group == 8
    # 16 tokens of 4 heads of 128 elements of 2 bytes are 16 KiB of one transfer
    assert shape.prompts.read_lost == 0


def test_four_cores_cut_an_expert_into_tiles_that_are_not_full_by_hand() -> None:
    shape = IssueShape.of(QWEN, TRAINIUM3, tp=1, cores=4)

    # 192 columns of each core: gate and up take two tiles of outputs, down one and a half
    assert shape.expert.macs == 4 * (2 * 2_048 * 256 + (128 + 64) * 2_048)


def test_heads_of_eight_chips_repeat_the_key_heads_and_pad_by_hand() -> None:
    shape = IssueShape.of(QWEN, TRAINIUM3, tp=8, cores=1)

    assert shape.query.macs == 2 * 2_048 * 4 * 128
    assert shape.kv.macs == 2 * 2_048 * 128
    assert shape.prompts.group == 4


def test_experts_divided_over_chips_leave_each_its_columns() -> None:
    model = MODELS["deepseek-v3"]
    whole = IssueShape.of(model, TRAINIUM3, tp=8, cores=1)
    eighth = IssueShape.of(model, TRAINIUM3, tp=8, cores=1, expert_tp=8)

    # 256 columns each: two full tiles of outputs, and half a tile of 512 to contract for down
    assert eighth.expert.macs == whole.expert.macs / 8
    assert eighth.expert.rate is ProductRate.FP8


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tp", "cores"), [(1, 1), (1, 4), (4, 4), (8, 8)])
def test_no_product_is_charged_less_than_its_multiply_accumulates(
    name: str, tp: int, cores: int
) -> None:
    model = MODELS[name]
    shape, weights = IssueShape.of(model, TRAINIUM3, tp=tp, cores=cores), layer_weights(model)

    assert shape.query.macs * tp >= weights.query.macs - weights.kv_up_macs
    assert shape.kv.macs * tp >= weights.kv.macs
    assert shape.latent.macs >= weights.latent.macs
    assert shape.router.macs >= weights.router.macs
    assert shape.dense.macs * tp >= weights.dense.macs
    assert shape.shared.macs * tp >= weights.shared.macs
    assert shape.expert.macs >= weights.expert.macs
    assert shape.lm_head.macs * tp >= model.vocab * model.hidden


def test_a_narrow_head_makes_small_transfers_of_its_new_keys() -> None:
    model = replace(MODELS["gpt-oss-120b"], kv_bytes_per_element=1)
    shape = IssueShape.of(model, TRAINIUM3, tp=8, cores=1)

    # one head of 64 bytes: a page of it is 1 KiB, one token's is 64 bytes
    assert 0 < shape.prompts.read_lost < 1 < shape.prompts.write_lost


def test_experts_in_four_bits_fill_tiles_of_512_elements_by_hand() -> None:
    shape = IssueShape.of(MODELS["gpt-oss-120b"], TRAINIUM3, tp=1, cores=1)

    # 2,880 elements to contract are five tiles of 512 and most of a sixth, as outputs 22.5 of 128
    assert shape.expert.macs == 3 * (6 * 512) * (23 * 128)


def test_what_every_chip_has_of_a_latent_is_divided_over_its_cores_by_hand() -> None:
    shape = IssueShape.of(MODELS["deepseek-v3"], TRAINIUM3, tp=8, cores=4)

    # 1,536 and 576 outputs are 384 and 144 of each core, three tiles and two
    assert shape.latent.macs == 4 * 7_168 * (3 + 2) * 128
