from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier
from emulator.specs.calibration import ROOFLINE
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.models import MODELS
from emulator.specs.partition import Partition
from emulator.ultraserver.step_cost import StepCostModel
from tests.emulator.ultraserver.tiny_steps import (
    LAUNCH_NS,
    TINY,
    TINY_ENDS_BYTES,
    batch_of,
    cost_model,
    same_on_each,
    slow_memory,
)


def test_one_token_on_one_chip_with_a_slow_memory_by_hand() -> None:
    cost = slow_memory().cost(batch_of(1, [(0, 1, 3)]))

    # a layer: 76 replicated parameters, K and V of 3 + 1 tokens, two experts of 36; one DMA start
    layer_bytes = 76 * 2 + (3 + 1) * 8 + 2 * 36 * 2
    # embedding row, last norm, LM head, FP32 logits written and read
    ends_bytes = 8 + 8 + 80 + 40 + 40
    assert cost.duration_ns == 2 * (layer_bytes + 1_300) + ends_bytes + LAUNCH_NS == 4_432
    assert cost.rank_ns.tolist() == [4_432]
    assert cost.engine_ns["dma"].tolist() == [2 * layer_bytes + ends_bytes]
    assert cost.engine_ns["collectives"].tolist() == [0]
    assert cost.hbm_bytes.tolist() == [2 * layer_bytes + ends_bytes]
    assert cost.link_bytes.tolist() == [0]
    # projections, router and LM head of one token, 4 keys of 2 heads, two experts
    assert cost.flops.tolist() == [2 * 2 * (48 + 16 + 2 * 2 * 8 + 2 * 36) + 2 * 40]


@pytest.mark.parametrize(
    ("lnc", "layer_bytes", "sums_ns"),
    [
        (8, (32 + 16 + 12 + 16) * 2 + 4 * 8, 0),
        # four cores: two query heads pad to four, one key head is in all four. Rows of 8 and of
        # 2 x 8 bytes are added up, three quarters twice, at a quarter of a byte a ns and core
        (2, (2 * 32 + 4 * 16 + 12 + 16) * 2 + 4 * 4 * 8, 2 * (24 + 1_300) + 2 * (48 + 1_300)),
        # eight cores: seven eighths twice, at an eighth of a byte
        (1, (4 * 32 + 8 * 16 + 12 + 16) * 2 + 8 * 4 * 8, 2 * (56 + 1_300) + 2 * (112 + 1_300)),
    ],
)
def test_the_three_lnc_settings_differ_in_a_layer_by_hand(
    lnc: int, layer_bytes: int, sums_ns: int
) -> None:
    cost = slow_memory(lnc=lnc).cost(batch_of(1, [(0, 1, 3)]))

    assert (
        cost.duration_ns
        == 2 * (layer_bytes + 2 * 36 * 2 + 1_300 + sums_ns) + TINY_ENDS_BYTES + LAUNCH_NS
    )


def test_two_chips_of_a_rank_share_heads_and_vocabulary_and_add_up_by_hand() -> None:
    model = replace(TINY, kv_heads=2, experts=2)
    cost = slow_memory(model, chips=2, tp=2).cost(batch_of(1, [(0, 1, 3)]))

    # one head: query, key, value and output 4 x 2 each; norms 12, router 2 x 4; its K and V
    layer_bytes = (32 + 12 + 8) * 2 + (3 + 1) * 8
    expert_bytes = 36 * 2  # one of two experts lies on each chip, and the token needs both
    # half of the embedding's row, of the LM head and its logits; all logits are read
    ends_bytes = 4 + 8 + 40 + 20 + 40
    # the chips have the row already, and nothing is dispatched: an all-reduce after attention and
    # one after the experts, each one exchange of 1,300 ns and a hop; for the ends, an all-reduce of
    # the embedded row and a gather of logits. Their few bytes pass through memory, at most 70 ns
    collectives_ns = (2 * 2 + 1 + 1) * 2_300
    expected_ns = 2 * (layer_bytes + expert_bytes + 1_300) + ends_bytes + collectives_ns
    assert cost.duration_ns == pytest.approx(expected_ns + LAUNCH_NS, abs=70)
    assert cost.rank_ns.shape == (1,)
    assert cost.engine_ns["dma"].tolist() == [2 * (layer_bytes + expert_bytes) + ends_bytes] * 2


def test_a_slow_chip_is_slow_between_its_cores_too_by_hand() -> None:
    cost = slow_memory(lnc=2).cost(batch_of(1, [(0, 1, 3)]), slow_factor=np.array([2.0]))

    layer_bytes = (2 * 32 + 4 * 16 + 12 + 16) * 2 + 4 * 4 * 8 + 2 * 36 * 2
    sums_ns = 2 * (24 + 1_300) + 2 * (48 + 1_300)
    assert cost.duration_ns == (
        2 * (2 * (layer_bytes + sums_ns) + TINY_ENDS_BYTES) + 2 * 1_300 + LAUNCH_NS
    )
    assert cost.engine_ns["dma"].tolist() == [2 * (2 * (layer_bytes + 48 + 96) + TINY_ENDS_BYTES)]


def test_a_shared_expert_is_read_and_added_up_by_every_rank_by_hand() -> None:
    shared = replace(TINY, shared_experts=1)
    batch = batch_of(1, [(0, 1, 3)])

    without, with_it = (slow_memory(model, lnc=2).cost(batch) for model in (TINY, shared))

    # 36 weights, and one more sum of a row over the cores
    assert with_it.duration_ns - without.duration_ns == 2 * (36 * 2 + 2 * (24 + 1_300))


def test_chips_of_a_rank_halve_a_shared_expert_and_add_it_up_by_hand() -> None:
    model = replace(TINY, kv_heads=2, experts=2)
    batch = batch_of(1, [(0, 1, 3)])

    without, with_it = (
        slow_memory(one, chips=2, tp=2).cost(batch)
        for one in (model, replace(model, shared_experts=1))
    )

    # 36 weights, half of them each; the experts' answers are added up in any case
    more_ns = with_it.duration_ns - without.duration_ns
    assert more_ns == pytest.approx(2 * 36, abs=2)


def test_two_exchanges_a_layer_wait_for_the_fabric_by_hand() -> None:
    alone = cost_model(1, TINY).cost(batch_of(1, [(0, 1, 3)]))
    shared = cost_model(4, TINY).cost(batch_of(4, [(0, 1, 3)]))

    # 2 layers x 2 exchanges x (1,300 ns start + one hop of 1,000 ns), and less than 1 ns of bytes;
    # each chip multiplies with one expert in place of two, some ns less
    assert shared.duration_ns - alone.duration_ns == pytest.approx(4 * 2_300, abs=20)


def test_a_dense_model_takes_its_weights_and_cache_by_hand() -> None:
    model = replace(
        TINY, experts=0, experts_per_token=0, expert_intermediate=0, dense_intermediate=6
    )

    cost = slow_memory(model).cost(batch_of(1, [(0, 1, 3)]))

    layer_bytes = (48 + 12 + 3 * 4 * 6) * 2 + (3 + 1) * 8
    assert cost.duration_ns == 2 * (layer_bytes + 1_300) + TINY_ENDS_BYTES + LAUNCH_NS
    assert slow_memory(model).routing == "none (dense)"


def test_a_dense_layer_before_the_experts_is_not_an_exchange_by_hand() -> None:
    model = replace(TINY, layers=3, first_dense_layers=1, dense_intermediate=6)

    cost, without = (
        slow_memory(one, chips=4).cost(batch_of(4, [(0, 1, 3)])) for one in (model, TINY)
    )

    layer_bytes = (48 + 12 + 3 * 4 * 6) * 2 + (3 + 1) * 8
    assert cost.duration_ns - without.duration_ns == layer_bytes + 1_300


def test_a_window_reads_less_of_a_long_context() -> None:
    windowed = replace(TINY, window_tokens=3, full_attention_every=2)
    rows = [(0, 1, 1_000)]

    full, less = (slow_memory(model).cost(batch_of(1, rows)) for model in (TINY, windowed))

    assert full.duration_ns - less.duration_ns == (1_000 - 2) * 8


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_catalog_is_costed_on_the_whole_machine(name: str) -> None:
    model = MODELS[name]
    cost = StepCostModel(
        TRN3_NL72X2, model, Partition(chips=144, tp=4, ep=144), calibration=ROOFLINE
    ).cost(same_on_each(36, requests=4, new=1, context=2_000))

    # no less than reading what a chip has to read at 4,224 bytes/ns: its part of the attention
    groups = {group.name: group for group in model.tensor_groups()}
    attention_ns = groups["attention"].copy_bytes / 4 / 4_224
    assert attention_ns < cost.duration_ns < 100e6
    assert (cost.chip_watts > 200).all()


def test_tensor_parallelism_shortens_the_step_of_a_large_dense_model() -> None:
    one, eight = (
        cost_model(8, MODELS["llama-3.1-70b"], tp=tp, lnc=2).cost(
            same_on_each(8 // tp, requests=2 * tp, new=1, context=1_000)
        )
        for tp in (1, 8)
    )

    assert 4 < one.duration_ns / eight.duration_ns < 8
    assert eight.engine_ns["collectives"].min() > 0 == one.engine_ns["collectives"].max()


def test_cut_lanes_slow_the_ranks_all_reduce_and_a_spare_far_away_too() -> None:
    model, batch = MODELS["llama-3.1-8b"], same_on_each(1, requests=256, new=1, context=10)
    costs = cost_model(4, model, tp=4)
    share = np.ones((144, len(Tier)))
    share[2, Tier.TRAY] = 1 / 8
    cut = AllToAll(TRN3_NL72X2, 4, links=LinkHealth(share=share))
    seats = np.array([0, 1, 100, 3])
    up = np.ones(4, dtype=np.bool_)

    whole_ns = costs.cost(batch).duration_ns
    cut_ns = costs.with_machine(all_to_all=cut, chips_up=up).cost(batch).duration_ns
    spare_ns = (
        costs.with_machine(
            all_to_all=AllToAll(TRN3_NL72X2, 4, physical=seats), chips_up=up, physical=seats
        )
        .cost(batch)
        .duration_ns
    )

    # 130 phases of 256 tokens' 4,096 BF16 elements, and one of their logits; seven eighths of the
    # time over the lanes that are left was not there before
    hidden_bytes, logit_bytes = 256 * 4_096 * 2, 256 * 128_256 * 4
    moving_ns = 3 / 4 * (130 * hidden_bytes + logit_bytes) / 512
    assert cut_ns - whole_ns == pytest.approx(7 * moving_ns, rel=1e-3)
    # the other rack: a quarter of the lanes, and three hops more for each of 131 phases
    assert spare_ns - whole_ns == pytest.approx(3 * moving_ns + 131 * 3_000, rel=1e-3)
