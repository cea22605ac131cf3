"""Joules of a step in each number format are those of its bytes and its products.

Energies by hand: 6 pJ a bit of HBM, 0.396 pJ an operation in BF16 and half of that in FP8; vector
and scalar work as long as their engines are busy.
"""

import pytest

from emulator.specs.models import MODELS
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from tests.emulator.ultraserver.tiny_steps import cost_model, same_on_each

LLAMA = MODELS["llama-3.1-8b"]
QWEN = MODELS["qwen3-30b-a3b"]
REQUESTS, CONTEXT = 16, 1_000
PICO, IDLE_WATTS = 1e-12, 200
HBM_BYTE = 8 * 6 * PICO
BF16_FLOP, FP8_FLOP = 0.396 * PICO, 0.198 * PICO


def decode(costs: StepCostModel) -> StepCost:
    return costs.cost(same_on_each(costs.partition.ranks, REQUESTS, new=1, context=CONTEXT))


def work_joules(cost: StepCost) -> float:
    """Above what its chips draw at rest."""
    return cost.chip_joules - IDLE_WATTS * len(cost.chip_watts) * cost.duration_ns / 1e9


def vector_and_scalar_joules(costs: StepCostModel, cost: StepCost) -> float:
    chip = costs.system.chip
    vector_ops = cost.engine_ns["vector"].sum() * chip.vector_flops_per_s.value / 1e9
    scalar_ops = cost.engine_ns["scalar"].sum() * chip.scalar_ops_per_s.value / 1e9
    return float(vector_ops * 2.4288 * PICO + scalar_ops * 9.7152 * PICO)


@pytest.mark.parametrize(
    ("precision", "bits"), [("fp8", 8 + 32 / 128**2), ("mxfp8", 8.25), ("mxfp4", 4.25)]
)
@pytest.mark.parametrize("kv_bytes", [1, 2])
def test_a_dense_decode_saves_the_joules_of_its_bytes_and_products_by_hand(
    precision: str, bits: float, kv_bytes: int
) -> None:
    wide = decode(cost_model(1, LLAMA.at_precision("bf16")))
    costs = cost_model(1, LLAMA.at_precision(precision, kv_bytes_per_element=kv_bytes))
    narrow = decode(costs)

    # Each matrix of a layer is read once: 4096 x (4096 + 2 x 1024 + 4096) and 3 x 4096 x 14336.
    matrices = 32 * (4_096 * (4_096 + 2_048 + 4_096) + 3 * 4_096 * 14_336)
    saved = matrices * (16 - bits) / 8
    # Keys and values of 8 heads of 128: those of the context are read, that of the token written.
    saved += (2 - kv_bytes) * REQUESTS * (CONTEXT + 1) * 32 * 2 * 8 * 128
    hbm_bytes = wide.hbm_bytes.sum() - saved
    fp8_flops = 2 * REQUESTS * matrices
    # The head, and scores and sums of 32 heads of 128, stay in BF16.
    bf16_flops = 2 * REQUESTS * (128_256 * 4_096 + 32 * (CONTEXT + 1) * 2 * 32 * 128)
    joules = HBM_BYTE * hbm_bytes + FP8_FLOP * fp8_flops + BF16_FLOP * bf16_flops
    joules += vector_and_scalar_joules(costs, narrow)
    assert work_joules(narrow) == pytest.approx(joules, rel=1e-3)
    assert work_joules(narrow) < work_joules(wide)


@pytest.mark.long
@pytest.mark.parametrize(
    ("new", "context", "order"),
    [
        # A decode reads weights; "mxfp4" has attention's in BF16, and multiplies there at its cost.
        (1, CONTEXT, ("bf16", "mxfp8", "fp8", "mxfp4", "w4a8")),
        (512, 0, ("bf16", "mxfp4", "mxfp8", "fp8", "w4a8")),
    ],
)
def test_joules_fall_from_format_to_format_with_what_a_step_is_bound_by(
    new: int, context: int, order: tuple[str, ...]
) -> None:
    def joules(precision: str, kv_bytes: int) -> float:
        model = QWEN.at_precision(precision, kv_bytes_per_element=kv_bytes)
        batch = same_on_each(4, REQUESTS, new=new, context=context)
        return cost_model(4, model).cost(batch).chip_joules

    wide, narrow = ([joules(each, kv_bytes) for each in order] for kv_bytes in (2, 1))
    assert wide == sorted(set(wide), reverse=True)
    assert narrow == sorted(set(narrow), reverse=True)
    assert all(less < more for less, more in zip(narrow, wide, strict=True))


@pytest.mark.parametrize("precision", ["bf16", "mxfp8", "fp8", "mxfp4", "w4a8"])
def test_a_cache_in_fp8_saves_the_joules_of_its_bytes_in_each_format(precision: str) -> None:
    model = QWEN.at_precision(precision)
    narrow_model = QWEN.at_precision(precision, kv_bytes_per_element=1)
    wide, narrow = (decode(cost_model(4, each)) for each in (model, narrow_model))

    # 48 layers of 4 heads of 128, on each of four ranks.
    saved = 4 * REQUESTS * (CONTEXT + 1) * 48 * 2 * 4 * 128
    assert wide.hbm_bytes.sum() - narrow.hbm_bytes.sum() == pytest.approx(saved, rel=1e-6)
    difference = work_joules(wide) - work_joules(narrow)
    assert difference == pytest.approx(HBM_BYTE * saved, rel=1e-3)
