from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import comb

import pytest

from emulator.specs.qwen3_30b_a3b import QWEN3_30B_A3B
from emulator.timing.routing import (
    chance_token_needs_chip,
    expected_assignments_per_chip,
    expected_distinct_experts_per_chip,
)


def test_the_expectations_equal_a_full_enumeration_of_small_cases() -> None:
    for experts, picks, ep, tokens in ((4, 2, 2, 1), (4, 2, 2, 3), (6, 3, 3, 2), (4, 1, 4, 3)):
        model = replace(QWEN3_30B_A3B, experts=experts, experts_per_token=picks)
        choices = list(combinations(range(experts), picks))
        chip = set(range(experts // ep))
        batches = list(product(choices, repeat=tokens))
        assigned = sum(len(chip & set(one)) for batch in batches for one in batch)
        distinct = sum(len(chip & set().union(*batch)) for batch in batches)
        needing = sum(bool(chip & set(one)) for one in choices)

        assert expected_assignments_per_chip(model, tokens, ep) == pytest.approx(
            assigned / len(batches)
        )
        assert expected_distinct_experts_per_chip(model, tokens, ep) == pytest.approx(
            distinct / len(batches)
        )
        assert chance_token_needs_chip(model, ep) == pytest.approx(needing / len(choices))


def test_64_decode_tokens_touch_nearly_all_experts_of_qwen3_30b_a3b() -> None:
    touched = expected_distinct_experts_per_chip(QWEN3_30B_A3B, 64, ep=4)

    assert touched == pytest.approx(32 * (1 - (15 / 16) ** 64))
    assert 31 < touched < 32


def test_one_chip_is_needed_by_every_token_and_one_expert_a_chip_by_k_in_e() -> None:
    assert chance_token_needs_chip(QWEN3_30B_A3B, 1) == 1
    assert chance_token_needs_chip(QWEN3_30B_A3B, 128) == pytest.approx(8 / 128)
    quarter = 1 - Fraction(comb(96, 8), comb(128, 8))
    assert chance_token_needs_chip(QWEN3_30B_A3B, 4) == pytest.approx(float(quarter))
