import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.chips import CHIPS
from emulator.specs.models import MODELS
from emulator.timing.gradient_shape import GradientProduct, GradientShape
from emulator.timing.layer_weights import layer_weights
from emulator.timing.product_rate import ProductRate

QWEN = MODELS["qwen3-30b-a3b"].at_precision("bf16")


def tokens(*counts: float) -> np.ndarray:
    return np.array(counts, dtype=np.float64)


def test_full_tiles_are_issued_as_two_products_of_their_own_size() -> None:
    shape = GradientShape.of(QWEN, TRAINIUM3, cores=1)
    weights = layer_weights(QWEN)

    for product, macs in ((shape.query, weights.query.macs), (shape.expert, weights.expert.macs)):
        assert product.issued_macs(tokens(4_096, 0)).tolist() == [2 * 4_096 * macs, 0]


def test_four_cores_cut_an_expert_into_gradients_that_fill_their_tiles_better_by_hand() -> None:
    shape = GradientShape.of(QWEN, TRAINIUM3, cores=4)
    assert TRAINIUM3.matrix.moving_rows_min.value <= 192
    # 192 columns of each core: contracted, they are a tile and a half; as outputs, two tiles
    of_inputs = 2 * 192 * 2_048 + 2_048 * 256
    of_weights = 3 * 2_048 * 192  # the 192 stream past tiles of the other side

    (issued,) = shape.expert.issued_macs(tokens(1_024))

    assert issued == 4 * 1_024 * (of_inputs + of_weights)


def test_tokens_that_fill_no_tile_are_contracted_as_a_part_of_one_by_hand() -> None:
    tile = TRAINIUM3.matrix.tile_rows.count
    assert (tile, TRAINIUM3.matrix.tile_columns.count) == (128, 128)
    product = GradientProduct(
        rate=ProductRate.PLAIN, engine=TRAINIUM3.matrix, cores=2, sides=((256.0, 384.0),)
    )
    least = TRAINIUM3.matrix.moving_rows_min.value
    # 130 tokens are a whole tile of contraction and the smallest part that sub-arrays make
    contracted = 128 + 128 / TRAINIUM3.matrix.sub_arrays.value
    rows = max(130, least)

    (issued,) = product.issued_macs(tokens(130))

    assert issued == 2 * (256 * 384 * rows + contracted * 384 * max(256, least))


@given(
    name=st.sampled_from(sorted(MODELS)),
    chip=st.sampled_from(sorted(CHIPS)),
    count=st.integers(1, 10_000),
    precision=st.sampled_from(["bf16", "fp8"]),
)
def test_products_are_never_issued_as_less_than_they_are(
    name: str, chip: str, count: int, precision: str
) -> None:
    model = MODELS[name].at_precision(precision)
    shape, weights = GradientShape.of(model, CHIPS[chip], cores=1), layer_weights(model)
    pairs = (
        (shape.query, weights.query.macs - weights.kv_up_macs),
        (shape.kv, weights.kv.macs),
        (shape.kv_up, weights.kv_up_macs),
        (shape.latent, weights.latent.macs),
        (shape.router, weights.router.macs),
        (shape.dense, weights.dense.macs),
        (shape.shared, weights.shared.macs),
        (shape.expert, weights.expert.macs),
        (shape.lm_head, model.vocab * model.hidden),
    )

    for product, macs in pairs:
        (issued,) = product.issued_macs(tokens(count))
        assert issued >= 2 * macs * count * (1 - 1e-12)


def test_fp8_matrices_are_multiplied_at_that_rate_and_the_lm_head_is_not() -> None:
    shape = GradientShape.of(MODELS["qwen3-30b-a3b"].at_precision("fp8"), TRAINIUM3, cores=4)

    assert shape.expert.rate is ProductRate.FP8
    assert shape.query.rate is ProductRate.FP8
    assert shape.lm_head.rate is shape.router.rate is ProductRate.PLAIN
    assert pytest.approx(shape.expert.sides[0]) == (768 / 4, 2_048)
