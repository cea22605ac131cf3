from dataclasses import replace
from itertools import combinations, product
from math import comb, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.catalog.mixtral_8x7b import MIXTRAL_8X7B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.model import ModelSpec
from emulator.specs.placement import ExpertPlacement
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.timing.routing import ExpectedRouting


def small(experts: int, picks: int, layers: int = 1) -> ModelSpec:
    return replace(MIXTRAL_8X7B, layers=layers, experts=experts, experts_per_token=picks)


def even(model: ModelSpec, chips: int, ep: int | None = None) -> ExpertPlacement:
    return ExpertPlacement.even(
        layers=model.moe_layers, experts=model.experts, chips=chips, ep=ep or chips
    )


def uniform(model: ModelSpec, chips: int) -> ExpectedRouting:
    return ExpectedRouting(ExpertDistribution.uniform(model), even(model, chips))


def placed(slots: list[list[list[int]]], experts: int, ep: int) -> ExpertPlacement:
    return ExpertPlacement(experts=experts, ep=ep, expert_of_slot=np.array(slots, dtype=np.int64))


def test_the_expectations_equal_a_full_enumeration_of_small_cases() -> None:
    for experts, picks, ep, tokens in ((4, 2, 2, 1), (4, 2, 2, 3), (6, 3, 3, 2), (4, 1, 4, 3)):
        routing = uniform(small(experts, picks), ep)
        choices = list(combinations(range(experts), picks))
        chip = set(range(experts // ep))
        batches = list(product(choices, repeat=tokens))
        assigned = sum(len(chip & set(one)) for batch in batches for one in batch)
        distinct = sum(len(chip & set().union(*batch)) for batch in batches)
        needing = sum(bool(chip & set(one)) for one in choices)

        each = np.full(ep, float(tokens))
        assert routing.pairs(each)[0] == pytest.approx(np.full(ep, assigned / len(batches)))
        assert routing.distinct(each)[0] == pytest.approx(np.full(ep, distinct / len(batches)))
        assert routing.chance_needed[0] == pytest.approx(np.full(ep, needing / len(choices)))


def test_64_decode_tokens_touch_nearly_all_experts_of_qwen3_30b_a3b() -> None:
    touched = uniform(QWEN3_30B_A3B, 4).distinct(np.full(4, 64.0))[0, 0]

    assert touched == pytest.approx(32 * (1 - (15 / 16) ** 64))
    assert 31 < touched < 32


def test_one_chip_is_needed_by_every_token_and_one_expert_a_chip_by_k_in_e() -> None:
    assert uniform(QWEN3_30B_A3B, 1).chance_needed[0, 0] == pytest.approx(1)
    assert uniform(QWEN3_30B_A3B, 128).chance_needed[0, 5] == pytest.approx(8 / 128)
    quarter = 1 - comb(96, 8) / comb(128, 8)
    assert uniform(QWEN3_30B_A3B, 4).chance_needed[0] == pytest.approx(np.full(4, quarter))


def test_layers_that_are_alike_are_worked_out_once() -> None:
    routing = uniform(QWEN3_30B_A3B, 4)
    zipf = ExpertDistribution.zipf(QWEN3_30B_A3B, exponent=1.0, seed=1)
    skewed = ExpectedRouting(zipf, even(QWEN3_30B_A3B, 4))

    assert routing.kind_of_layer.tolist() == [0] * 48
    assert sorted(skewed.kind_of_layer.tolist()) == list(range(48))


def test_a_copied_expert_gives_half_of_its_pairs_to_each_copy_by_hand() -> None:
    model = small(experts=3, picks=1)
    # expert 0 on both chips, 1 and 2 on one each
    routing = ExpectedRouting(
        ExpertDistribution.uniform(model), placed([[[0, 1], [0, 2]]], experts=3, ep=2)
    )

    assert routing.pairs(np.array([6.0, 6.0]))[0].tolist() == pytest.approx([3, 3])
    assert routing.chance_needed[0].tolist() == pytest.approx([1 / 2, 1 / 2])
    # half of a third, and a third
    distinct = (1 - (5 / 6) ** 6) + (1 - (2 / 3) ** 6)
    assert routing.distinct(np.array([6.0, 6.0]))[0, 0] == pytest.approx(distinct)


def test_groups_share_nothing_and_see_their_own_tokens() -> None:
    model = small(experts=4, picks=2)
    routing = ExpectedRouting(ExpertDistribution.uniform(model), even(model, 4, ep=2))

    assert routing.pairs(np.array([10.0, 10, 2, 2])).tolist() == [[10, 10, 2, 2]]
    assert routing.distinct(np.array([0.0, 0, 2, 2]))[0, :2].tolist() == [0, 0]


@given(st.data())
def test_any_placement_of_any_odds_equals_a_full_enumeration(data: st.DataObject) -> None:
    experts = data.draw(st.integers(2, 5))
    picks = data.draw(st.integers(1, experts))
    model = small(experts, picks)
    weights = st.floats(0.1, 10)
    zipf = ExpertDistribution.zipf(model, exponent=data.draw(weights) / 5, seed=0)
    extra = data.draw(st.lists(st.integers(-1, experts - 1), min_size=4, max_size=4))
    held = [*range(experts), *extra]
    held += [-1] * (-len(held) % 3)
    slots = [held[chip::3] for chip in range(3)]

    routing = ExpectedRouting(zipf, placed([slots], experts=experts, ep=3))

    odds = zipf.odds[0]
    copies = [held.count(expert) for expert in range(experts)]
    sets = list(combinations(range(experts), picks))
    total = sum(prod(odds[expert] for expert in one) for one in sets)
    for chip in range(3):
        share = [slots[chip].count(expert) / copies[expert] for expert in range(experts)]
        pairs = missed = 0.0
        for one in sets:
            chance = prod(odds[expert] for expert in one) / total
            pairs += chance * sum(share[expert] for expert in one)
            missed += chance * prod(1 - share[expert] for expert in one)
        assert routing.pairs(np.ones(3))[0, chip] == pytest.approx(pairs)
        assert routing.chance_needed[0, chip] == pytest.approx(1 - missed, abs=1e-12)


def test_all_chips_of_a_group_together_do_every_pair_once() -> None:
    zipf = ExpertDistribution.zipf(QWEN3_30B_A3B, exponent=1.0, seed=1)
    routing = ExpectedRouting(zipf, even(QWEN3_30B_A3B, 144))  # 128 experts on 144 chips

    assert routing.pairs(np.full(144, 10.0)).sum(axis=1) == pytest.approx(np.full(48, 80.0))
    assert routing.pairs_per_token[:, 128:].max() == 0
    assert routing.chance_needed[:, 128:].max() == pytest.approx(0, abs=1e-12)


def test_a_distribution_over_other_experts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"over \(1, 4\) on \(1, 6\)"):
        ExpectedRouting(ExpertDistribution.uniform(small(4, 2)), even(small(6, 2), 2))
