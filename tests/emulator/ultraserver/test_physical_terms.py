"""Each named term beside the roofline, alone and by hand: switched on in a step without others."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.specs.matrix_engine import MatrixEngine
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from tests.emulator.ultraserver.tiny_steps import SLOW_MEMORY, TINY, batch_of, same_on_each

WHOLE = Partition(chips=1, ep=1, lnc=8)


def figure(value: float) -> Figure:
    return Figure(value=value, unit="of a test", source="a test")


def cost_on(chip: ChipSpec) -> StepCost:
    system = replace(SLOW_MEMORY, chip=chip)
    return StepCostModel(system, TINY, WHOLE, calibration=ROOFLINE).cost(batch_of(1, [(0, 1, 3)]))


def with_matrix(**values: float) -> ChipSpec:
    matrix: MatrixEngine = replace(
        SLOW_MEMORY.chip.matrix, **{name: figure(value) for name, value in values.items()}
    )
    return replace(SLOW_MEMORY.chip, matrix=matrix)


PLAIN = cost_on(SLOW_MEMORY.chip)


def test_products_that_wait_for_each_other_fill_and_drain_the_array_by_hand() -> None:
    cost = cost_on(with_matrix(fill_drain_ns=100))

    # of each layer: projections, scores, values, output; the router; gate and up, down. The LM head
    assert cost.parts_ns["fill_drain"] == (2 * (4 + 1 + 2) + 1) * 100
    assert cost.duration_ns - PLAIN.duration_ns == (2 * (4 + 1 + 2) + 1) * 100


def test_a_phase_that_waits_for_memory_does_not_wait_for_the_clocks_ramp() -> None:
    cost = cost_on(with_matrix(ramp_ns=3_000, ramp_share=0.5))

    assert cost.parts_ns["ramp"] == 0
    assert cost.duration_ns == PLAIN.duration_ns
    assert cost.engine_ns["tensor"][0] > PLAIN.engine_ns["tensor"][0]


def test_a_long_prefill_loses_a_ramp_in_every_burst_by_hand() -> None:
    model = MODELS["llama-3.1-8b"]
    batch = same_on_each(1, requests=1, new=4_096, context=0)

    cost = StepCostModel(TRN3_NL72X2, model, WHOLE, calibration=ROOFLINE).cost(batch)

    # attention and the network of 32 layers; the LM head of one row waits for memory
    assert cost.parts_ns["ramp"] == pytest.approx(2 * 32 * 750)


def test_narrow_caches_lose_time_to_small_transfers_by_hand() -> None:
    chip = replace(SLOW_MEMORY.chip, dma_saturating_bytes=figure(4_096))

    cost = cost_on(chip)

    # TINY's one key head has 2 elements of 2 bytes: 4 bytes a token, 64 a page, of which a transfer
    # of 4,096 bytes has 256 bytes' overhead
    def lost(size: int) -> float:
        return (size + 256) / size * 4_096 / 4_352 - 1

    lost_ns = 2 * 8 * (3 * lost(64) + 1 * lost(4))
    assert cost.duration_ns - PLAIN.duration_ns == pytest.approx(lost_ns, abs=1)
    assert cost.hbm_bytes.tolist() == PLAIN.hbm_bytes.tolist()


def test_every_dependent_kernel_of_a_gpu_is_launched_and_a_graph_once_by_hand() -> None:
    gpu = cost_on(replace(SLOW_MEMORY.chip, maker="NVIDIA"))

    assert gpu.parts_ns["kernel_launch"] == (2 * (4 + 1 + 2) + 1) * 1_000
    assert gpu.parts_ns["graph_launch"] == PLAIN.parts_ns["graph_launch"] == 1_000
    assert PLAIN.parts_ns["kernel_launch"] == 0


def test_gathering_rows_for_experts_takes_the_gpsimd_engines_by_hand() -> None:
    # 10 tokens of two experts are 20 rows of 4 elements in each layer, 2 picks of each token; 10
    # logits of the one row that is sampled
    chip = replace(SLOW_MEMORY.chip, gpsimd_ops_per_s=figure(1e9))
    system = replace(SLOW_MEMORY, chip=chip)

    cost = StepCostModel(system, TINY, WHOLE, calibration=ROOFLINE).cost(batch_of(1, [(0, 10, 0)]))

    assert cost.engine_ns["gpsimd"].tolist() == [2 * (20 * 4 + 10 * 2) + 10]


def test_few_rows_occupy_the_matrix_engine_as_long_as_the_smallest_issue() -> None:
    model, made = MODELS["llama-3.1-8b"], WHOLE
    costs = StepCostModel(TRN3_NL72X2, model, made, calibration=ROOFLINE)

    def tensor_ns(requests: int) -> int:
        cost = costs.cost(same_on_each(1, requests=requests, new=1, context=0))
        return int(cost.engine_ns["tensor"][0])

    one, sixty_four, many = tensor_ns(1), tensor_ns(64), tensor_ns(128)
    # projections and networks are the same issue; each request has scores of its own
    assert one < sixty_four < 1.1 * one
    assert many > 1.7 * one
    weights = model.parameters - model.vocab * model.hidden
    assert one >= 64 * 2 * weights / 629_145.6


def test_every_part_is_bound_by_the_engine_that_is_busy_longest() -> None:
    decode = PLAIN.bound

    assert set(decode) == {"attention", "router", "experts", "lm_head", "sampling"}
    assert set(decode.values()) == {"dma"}
    assert PLAIN.parts_ns["attention"] == 2 * ((48 + 12) * 2 + 4 * 8)
    assert PLAIN.parts_ns["router"] == 2 * 16 * 2
    assert PLAIN.parts_ns["experts"] == 2 * 2 * 36 * 2
    assert PLAIN.parts_ns["lm_head"] == 8 + 8 + 80 + 40
    assert PLAIN.parts_ns["sampling"] == 40
    assert np.isclose(sum(PLAIN.parts_ns.values()), PLAIN.duration_ns)
