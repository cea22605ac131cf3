"""Experts whole or by columns, inside one rank or over several, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.model import Sparsity
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.specs.systems import SYSTEMS
from emulator.ultraserver.step_cost import StepCost, StepCostModel
from tests.emulator.ultraserver.tiny_steps import (
    SLOW_MEMORY,
    TINY,
    batch_of,
    same_on_each,
    slow_memory,
)

WIDE = replace(TINY, hidden=4_096, heads=4)


def cost_of(requests: int, *, tokens: int = 1, **partition: int) -> StepCost:
    made = Partition(**{"lnc": 8, **partition})
    costs = StepCostModel(TRN3_NL72X2, WIDE, made, calibration=ROOFLINE)
    return costs.cost(same_on_each(made.ranks, requests=requests, new=tokens, context=0))


def test_columns_over_two_chips_halve_every_experts_bytes_by_hand() -> None:
    model = replace(TINY, kv_heads=2)
    whole = slow_memory(model, chips=2, tp=2, ep=2).cost(batch_of(1, [(0, 1, 3)]))
    halved = slow_memory(model, chips=2, tp=2, ep=1, expert_tp=2).cost(batch_of(1, [(0, 1, 3)]))

    # of two experts of 36 weights each chip has half of both; with two of four experts each, it has
    # one of the two on average, and reads it whole
    assert halved.engine_ns["dma"].tolist() == whole.engine_ns["dma"].tolist()
    wide = batch_of(1, [(0, 50, 0)])
    # with many tokens both read all that they hold, which is as much
    assert slow_memory(model, chips=2, tp=2, ep=1, expert_tp=2).cost(wide).hbm_bytes == (
        pytest.approx(slow_memory(model, chips=2, tp=2, ep=2).cost(wide).hbm_bytes)
    )


def test_experts_inside_a_rank_are_added_up_and_nothing_is_dispatched() -> None:
    whole, columns = (
        cost_of(8, chips=2, tp=2, **sharding) for sharding in ({"ep": 2}, {"ep": 1, "expert_tp": 2})
    )

    for cost in (whole, columns):
        assert cost.parts_ns["dispatch_combine"] == 0
        assert cost.parts_ns["tp_collectives"] > 0
    assert whole.flops.tolist() == columns.flops.tolist()
    assert whole.link_bytes.tolist() == columns.link_bytes.tolist()
    # two layers with two all-reduces, the embedded rows', and the gather of logits; a chip of two
    # sends half of a payload in each of an all-reduce's two phases
    hidden_bytes, logit_bytes = 8 * 4_096 * 2, 8 * WIDE.vocab * 4
    assert whole.link_bytes[0] == (5 * 2 * hidden_bytes + logit_bytes) / 2


def test_columns_over_ranks_gather_every_token_and_scatter_the_sums_by_hand() -> None:
    cost = cost_of(10, chips=4, tp=1, ep=1, expert_tp=4)

    # each chip sends its 10 rows to three others, and sums of their 30 rows back, in two layers
    row_bytes = 4_096 * 2
    assert cost.link_bytes.tolist() == [2 * 2 * 3 * 10 * row_bytes] * 4
    assert cost.parts_ns["tp_collectives"] == 0 < cost.parts_ns["dispatch_combine"]


def test_blocks_of_chips_share_experts_and_each_gets_the_rows_that_it_needs_by_hand() -> None:
    cost = cost_of(10, chips=4, tp=1, ep=2, expert_tp=2)
    whole = cost_of(10, chips=4, tp=1, ep=4)

    # a block of two chips has two of four experts, and a token needs it unless it picks the other
    # two, one of six pairs; each of its chips gets the row
    sent = 10 * 5 / 6 * (1 + 2)
    assert cost.link_bytes.tolist() == pytest.approx([2 * 2 * sent * 4_096 * 2] * 4)
    assert cost.flops.tolist() == pytest.approx(whole.flops.tolist())


def test_several_groups_in_a_rank_share_its_tokens() -> None:
    two_groups, one_group = (cost_of(64, chips=4, tp=4, ep=ep) for ep in (2, 4))

    # either way the rank's pairs are computed once
    assert two_groups.flops.sum() == pytest.approx(one_group.flops.sum())
    assert two_groups.parts_ns["dispatch_combine"] == one_group.parts_ns["dispatch_combine"] == 0


@pytest.mark.parametrize(
    ("sharding", "waits"),
    [
        ({"chips": 4, "tp": 1, "ep": 1, "expert_tp": 4}, True),
        ({"chips": 4, "tp": 1, "ep": 1, "expert_tp": 2}, False),
        ({"chips": 4, "tp": 2, "ep": 1, "expert_tp": 2}, False),
        ({"chips": 4, "tp": 2, "ep": 2, "expert_tp": 2}, True),
    ],
)
def test_ranks_wait_for_each_other_when_they_share_columns(
    sharding: dict[str, int], waits: bool
) -> None:
    made = Partition(lnc=8, **sharding)
    cost = StepCostModel(TRN3_NL72X2, TINY, made, calibration=ROOFLINE).cost(
        batch_of(made.ranks, [(0, 1, 10)])
    )

    assert bool(cost.hbm_bytes[-1]) == waits


def test_an_expert_with_few_rows_is_issued_as_many_by_hand() -> None:
    costs = StepCostModel(SLOW_MEMORY, TINY, Partition(chips=1, ep=1, lnc=8), calibration=ROOFLINE)
    batch = batch_of(1, [(0, 64, 0)])

    def issued_ns(distinct: int) -> int:
        loads = ExpertLoads(
            pairs=np.full((2, 1), 128), distinct=np.full((2, 1), distinct), sent=np.zeros((2, 1, 1))
        )
        return int(costs.cost(batch, loads).engine_ns["tensor"][0])

    # three tiles each of which takes 4 contracted elements as 32 and 3 outputs as 128; 128 rows
    # are two issues of 64, so four experts cost twice as much as one or two
    tile_macs = 3 * 32 * 128
    more_ns = 2 * 2 * tile_macs * (4 * 64 - 128) / 629_145.6
    assert issued_ns(1) == issued_ns(2)
    assert issued_ns(4) - issued_ns(2) == pytest.approx(more_ns, abs=1)


def test_structured_zeros_speed_up_a_prefill_and_not_attention() -> None:
    dense = MODELS["llama-3.1-8b"]
    sparse = replace(dense, sparsity=Sparsity.STRUCTURED)
    batch = same_on_each(1, requests=1, new=4_096, context=0)
    made = Partition(chips=1, ep=1, lnc=8)
    chip = TRN3_NL72X2.chip
    system = replace(
        TRN3_NL72X2,
        chip=replace(
            chip,
            tensor_sparse_flops_per_s=replace(
                chip.tensor_bf16_flops_per_s, value=4 * chip.tensor_bf16_flops_per_s.value
            ),
        ),
    )

    slow, fast = (
        StepCostModel(system, model, made, calibration=ROOFLINE).cost(batch)
        for model in (dense, sparse)
    )

    assert slow.flops.tolist() == fast.flops.tolist()
    assert fast.parts_ns["dense"] == pytest.approx(slow.parts_ns["dense"] / 4, rel=0.1)
    # scores and sums of 8 million pairs a head are not weights
    own_ns = 32 * 32 * 4 * 128 * (4_096 * 4_097 / 2) / 629_145.6
    assert fast.parts_ns["attention"] > own_ns


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_of_the_catalog_runs_a_model_on_its_chips(name: str) -> None:
    system = SYSTEMS[name]
    chips = min(8, system.chips.count)
    made = Partition(chips=chips, tp=1, ep=chips, lnc=system.chip.default_lnc.count)

    cost = StepCostModel(system, MODELS["qwen3-30b-a3b"], made, calibration=ROOFLINE).cost(
        same_on_each(chips, requests=4, new=1, context=500)
    )

    read_ns = cost.hbm_bytes.max() / system.chip.memory_bytes_per_s * 1e9
    assert read_ns < cost.duration_ns
    assert sum(cost.parts_ns.values()) == pytest.approx(cost.duration_ns, abs=1.001)
