import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.timing.expert_maxima import expert_maxima
from emulator.timing.expert_sets import pick_chances


@pytest.mark.long
def test_one_block_has_every_pair_and_what_tokens_are_expected_to_hit() -> None:
    maxima = expert_maxima(blocks=1, experts=256, experts_per_token=8)

    distinct, pairs = maxima.of(64)

    assert pairs == 64 * 8
    assert distinct == pytest.approx(256 * (1 - (1 - 8 / 256) ** 64), rel=0.01)


def test_a_single_token_of_two_picks_by_hand() -> None:
    # two picks of four experts in two blocks of two: in 2 of 6 sets both lie in one block
    maxima = expert_maxima(blocks=2, experts=4, experts_per_token=2)

    distinct, pairs = maxima.of(1)

    assert distinct == pairs == pytest.approx(2 * 2 / 6 + 1 * 4 / 6, abs=0.2)


def test_no_tokens_hit_nothing() -> None:
    assert expert_maxima(blocks=8, experts=64, experts_per_token=4).of(0) == (0.0, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("tokens", [16, 200, 2_000])
def test_maxima_are_those_of_slow_draws(tokens: int) -> None:
    rng = np.random.default_rng(7)
    hits, loads = [], []
    for _ in range(40):
        picked = np.array([rng.choice(32, size=4, replace=False) for _ in range(tokens)])
        load = np.bincount(picked.ravel(), minlength=32).reshape(8, 4)
        hits.append((load > 0).sum(axis=1).max())
        loads.append(load.sum(axis=1).max())

    distinct, pairs = expert_maxima(blocks=8, experts=32, experts_per_token=4).of(tokens)

    assert distinct == pytest.approx(np.mean(hits), rel=0.03)
    assert pairs == pytest.approx(np.mean(loads), rel=0.03)


@pytest.mark.long
@given(
    blocks=st.sampled_from([1, 2, 8, 24, 72]),
    tokens=st.floats(1, 1e5),
    more=st.floats(1.5, 4),
)
def test_the_busiest_has_at_least_the_mean_and_more_tokens_load_it_more(
    blocks: int, tokens: float, more: float
) -> None:
    maxima = expert_maxima(blocks=blocks, experts=256, experts_per_token=8)

    distinct, pairs = maxima.of(tokens)
    later_distinct, later_pairs = maxima.of(tokens * more)

    assert pairs >= 0.99 * tokens * 8 / blocks
    assert distinct <= min(pairs, maxima.most_held) * (1 + 1e-9)
    assert later_pairs > pairs
    assert later_distinct >= 0.98 * distinct


@pytest.mark.long
def test_liked_experts_are_hit_by_more_tokens_and_load_their_block() -> None:
    even = expert_maxima(blocks=1, experts=256, experts_per_token=8)
    liked = expert_maxima(blocks=1, experts=256, experts_per_token=8, exponent=0.6)
    odds = np.arange(1, 257, dtype=float) ** -0.6

    assert liked.of(64)[0] < 0.92 * even.of(64)[0]
    assert liked.of(64)[0] == pytest.approx((1 - (1 - pick_chances(odds, 8)) ** 64).sum(), rel=0.02)
    assert liked.of(64)[1] == even.of(64)[1] == 64 * 8


@pytest.mark.long
@pytest.mark.parametrize("tokens", [128, 4_096])
def test_the_busiest_of_liked_experts_blocks_has_more_pairs(tokens: int) -> None:
    even = expert_maxima(blocks=8, experts=256, experts_per_token=8)
    liked = expert_maxima(blocks=8, experts=256, experts_per_token=8, exponent=0.6)

    assert 1.1 * even.of(tokens)[1] < liked.of(tokens)[1] < 1.4 * tokens
