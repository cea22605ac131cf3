from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.all_to_all import AllToAll
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.expert_loads import ExpertLoads
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.weight_format import WeightFormat
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.ultraserver.tiny_steps import (
    LAUNCH_NS,
    SLOW_MEMORY,
    TINY,
    TINY_ENDS_BYTES,
    batch_of,
    cost_model,
    same_on_each,
    slow_memory,
)

TRAY = cost_model(4)


def test_a_token_is_sent_once_to_each_other_chip_that_holds_one_of_its_experts() -> None:
    costs = cost_model(4, replace(TINY, hidden=4_096))

    cost = costs.cost(batch_of(4, [(0, 100, 0)]))

    # each other chip holds 1 of 4 experts and is picked by half of the tokens
    sent_bytes = 3 * 100 * 0.5 * 4_096 * 2
    exchanges = 2 * 2
    expected_ns = exchanges * sent_bytes / 512
    assert cost.engine_ns["collectives"].tolist() == [
        int(expected_ns),
        *[int(expected_ns / 3)] * 3,
    ]


def test_rows_for_experts_in_8_bits_are_dispatched_in_8_bits_by_hand() -> None:
    model = replace(TINY, hidden=4_096, stored_expert_format=WeightFormat.FP8_BLOCK128)

    cost = cost_model(4, model).cost(batch_of(4, [(0, 100, 0)]))

    # as above, but a row goes out as 4,096 bytes with 128 scales, and comes back in BF16
    sent_rows = 3 * 100 * 0.5
    row_bytes = 4_096 + 128 + 2 * 4_096
    assert cost.link_bytes[0] == pytest.approx(2 * sent_rows * row_bytes)
    assert cost.dispatched_bytes[0] == pytest.approx(2 * sent_rows * (4_096 + 128))
    assert cost.engine_ns["collectives"][0] == int(2 * sent_rows * row_bytes / 512)
    plain = cost_model(4, replace(TINY, hidden=4_096)).cost(batch_of(4, [(0, 100, 0)]))
    saved_ns = plain.parts_ns["dispatch_combine"] - cost.parts_ns["dispatch_combine"]
    assert saved_ns == pytest.approx(2 * sent_rows * (4_096 - 128) / 512)


def counted_loads(pairs: list[int], distinct: list[int], sent: list[list[int]]) -> ExpertLoads:
    """The same in both of TINY's layers."""
    return ExpertLoads(
        pairs=np.array([pairs] * 2), distinct=np.array([distinct] * 2), sent=np.array([sent] * 2)
    )


def test_counted_loads_wait_for_the_fullest_chip_by_hand() -> None:
    costs = slow_memory(chips=2, ep=2)
    batch = batch_of(2, [(0, 3, 0), (1, 3, 0)])
    level = counted_loads([6, 6], [2, 2], [[0, 3], [3, 0]])
    skewed = counted_loads([11, 1], [2, 1], [[0, 1], [3, 0]])

    in_level, in_skewed = costs.cost(batch, level), costs.cost(batch, skewed)

    assert in_skewed.duration_ns == in_level.duration_ns  # both read two experts on chip 0
    one_less = in_level.engine_ns["dma"][1] - in_skewed.engine_ns["dma"][1]
    assert one_less == 2 * 36 * 2
    fewer = counted_loads([6, 6], [1, 1], [[0, 3], [3, 0]])
    assert in_level.duration_ns - costs.cost(batch, fewer).duration_ns == 2 * 36 * 2


def test_counted_loads_move_the_tokens_that_were_sent() -> None:
    costs = cost_model(4, replace(TINY, hidden=4_096))
    sent = np.zeros((2, 4, 4), dtype=np.int64)
    sent[:, 2, 3], sent[:, 2, 2] = 70, 1_000  # what a chip keeps is free
    loads = ExpertLoads(
        pairs=np.full((2, 4), 50), distinct=np.ones((2, 4), dtype=np.int64), sent=sent
    )

    cost = costs.cost(batch_of(4, [(2, 100, 0)]), loads)

    moving_ns = int(2 * 2 * 70 * 4_096 * 2 / 512)
    assert cost.engine_ns["collectives"].tolist() == [0, 0, moving_ns, moving_ns]


def test_the_chips_of_a_rank_dispatch_equal_parts_of_its_tokens_by_hand() -> None:
    costs = cost_model(4, replace(TINY, hidden=4_096), tp=2)
    batch = batch_of(2, [(0, 100, 0)])
    # each chip has one of four experts: it computes a quarter of 200 pairs, and half of the 50
    # tokens of each of the rank's chips need it
    sent = np.array([[[25.0] * 4, [25.0] * 4, [0.0] * 4, [0.0] * 4]] * 2)
    loads = ExpertLoads(pairs=np.full((2, 4), 50), distinct=np.ones((2, 4)), sent=sent)

    expected, counted = costs.cost(batch), costs.cost(batch, loads)

    assert expected.duration_ns == pytest.approx(counted.duration_ns, abs=1)
    for name, busy in expected.engine_ns.items():
        assert busy.tolist() == pytest.approx(counted.engine_ns[name].tolist(), abs=1)


def test_loads_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match=r"loads of \(2, 4\) layers and chips for \(48, 4\)"):
        TRAY.cost(
            batch_of(4, [(0, 1, 0)]),
            ExpertLoads(pairs=np.ones((2, 4)), distinct=np.ones((2, 4)), sent=np.ones((2, 4, 4))),
        )


def test_a_slow_chip_takes_so_many_times_as_long_by_hand() -> None:
    costs = slow_memory(chips=2, ep=1)  # two chips that never meet
    batch = batch_of(2, [(0, 1, 3), (1, 1, 3)])

    cost = costs.cost(batch, slow_factor=np.array([1.0, 3.0]))

    work_ns, starts_ns = 2 * 328 + TINY_ENDS_BYTES, 2 * 1_300 + LAUNCH_NS
    assert cost.rank_ns.tolist() == [work_ns + starts_ns, 3 * work_ns + starts_ns]
    assert cost.engine_ns["dma"].tolist() == [work_ns, 3 * work_ns]
    assert cost.duration_ns == 3 * work_ns + starts_ns


def test_one_slow_chip_of_a_rank_holds_up_the_others() -> None:
    costs = cost_model(4, tp=4)
    batch = batch_of(1, [(0, 1, 1_000)] * 8)

    even = costs.cost(batch)
    slowed = costs.cost(batch, slow_factor=np.array([1.0, 1.0, 2.0, 1.0]))

    assert slowed.duration_ns > 1.5 * even.duration_ns
    assert slowed.engine_ns["dma"][1] == even.engine_ns["dma"][1]
    assert slowed.engine_ns["dma"][2] == pytest.approx(2 * even.engine_ns["dma"][2], abs=2)
    with pytest.raises(ValueError, match=r"\(1,\) slow factors for 4 chips"):
        costs.cost(batch, slow_factor=np.ones(1))


def test_an_idle_rank_of_a_busy_group_runs_a_dummy_token_by_hand() -> None:
    costs = slow_memory(chips=2, ep=2)

    cost = costs.cost(batch_of(2, [(0, 1, 3)]))

    # the weights of a layer without experts, K and V of the dummy, half of the token's two experts
    dummy_bytes = 2 * (76 * 2 + 8 + 36 * 2) + 8
    assert cost.engine_ns["dma"][1] == dummy_bytes
    assert cost.chip_watts[1] > costs.idle_chip_watts


def test_an_idle_rank_of_an_idle_group_and_of_a_dense_model_runs_nothing() -> None:
    dense = replace(
        TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=6
    )
    apart, dense_costs = slow_memory(chips=2, ep=1), slow_memory(dense, chips=2, ep=2)

    for costs in (apart, dense_costs):
        cost = costs.cost(batch_of(2, [(0, 1, 3)]))
        assert cost.engine_ns["dma"][1] == 0
        assert cost.chip_watts[1] == costs.idle_chip_watts


@pytest.mark.parametrize(
    ("chips", "tp", "ep", "waits"),
    [
        (4, 1, 4, True),  # a group of four ranks
        (4, 1, 1, False),  # each chip has every expert
        (4, 2, 1, False),
        (4, 2, 4, True),
        (12, 4, 6, True),  # the rank in the middle is in both groups
    ],
)
def test_ranks_wait_for_each_other_when_they_share_a_group_of_experts(
    chips: int, tp: int, ep: int, waits: bool
) -> None:
    costs = cost_model(chips, tp=tp, ep=ep)

    cost = costs.cost(batch_of(chips // tp, [(0, 1, 10)]))

    assert bool(cost.engine_ns["dma"][-1]) == waits


def test_a_rank_whose_chip_is_gone_runs_no_dummy_token() -> None:
    whole = slow_memory(chips=2, ep=2)
    placement = ExpertPlacement(
        experts=4, ep=2, expert_of_slot=np.array([[[0, 1, 2, 3], [-1] * 4]] * 2, dtype=np.int64)
    )
    without = whole.with_placement(placement).with_machine(
        all_to_all=AllToAll(SLOW_MEMORY, 2), chips_up=np.array([True, False])
    )

    cost = without.cost(batch_of(2, [(0, 1, 3)]))

    assert cost.engine_ns["dma"].tolist() == [2 * 328 + TINY_ENDS_BYTES, 0]
    assert whole.layout.placement is not without.layout.placement is placement


def test_groups_do_not_wait_for_each_other_within_a_step() -> None:
    """One group is slow in attention, the other has the long LM head."""
    costs = cost_model(2, ep=1)
    many, long = [(0, 1, 10)] * 200, [(1, 1, 40_000)] * 4
    apart = costs.cost(batch_of(2, [*many, *long]))
    together = cost_model(2, ep=2).cost(batch_of(2, [*many, *long]))

    assert apart.duration_ns == apart.rank_ns.max()
    assert together.duration_ns >= together.rank_ns.max()


def test_skewed_routing_makes_the_fullest_chip_hold_up_all() -> None:
    batch = same_on_each(16, requests=32, new=1, context=500)
    partition = Partition(chips=16, ep=16)
    zipf = ExpertDistribution.zipf(QWEN3_30B_A3B, exponent=1.0, seed=3)
    skewed = StepCostModel(
        TRN3_NL72X2, QWEN3_30B_A3B, partition, distribution=zipf, calibration=ROOFLINE
    )

    cost = skewed.cost(batch)

    assert (
        cost.duration_ns
        > StepCostModel(TRN3_NL72X2, QWEN3_30B_A3B, partition, calibration=ROOFLINE)
        .cost(batch)
        .duration_ns
    )
    assert skewed.routing == "zipf:1 (seed 3) (expected value)"
