from itertools import combinations
from math import comb, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.timing.expert_sets import chance_all_missed, odds_for, pick_chances, set_weights

odds_strategy = st.lists(st.floats(0.01, 100), min_size=2, max_size=6)


def slow_pick_chances(odds: list[float], k: int) -> list[float]:
    sets = list(combinations(range(len(odds)), k))
    weights = [prod(odds[expert] for expert in one) for one in sets]
    return [
        sum(w for one, w in zip(sets, weights, strict=True) if expert in one) / sum(weights)
        for expert in range(len(odds))
    ]


def test_three_experts_of_which_two_are_picked_by_hand() -> None:
    # sets 01, 02 and 12 weigh 2, 3 and 6
    assert set_weights(np.array([1.0, 2.0, 3.0]), 2).tolist() == [1, 6, 11]
    chances = pick_chances(np.array([1.0, 2.0, 3.0]), 2)
    assert chances.tolist() == pytest.approx([5 / 11, 8 / 11, 9 / 11])


@given(odds_strategy, st.data())
def test_chances_equal_a_full_enumeration(odds: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(odds)))

    chances = pick_chances(np.array(odds), k)

    assert chances.tolist() == pytest.approx(slow_pick_chances(odds, k))
    assert chances.sum() == pytest.approx(k)


@given(odds_strategy, st.data())
def test_the_chance_to_miss_a_chip_equals_a_full_enumeration(
    odds: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(odds)))
    kept = data.draw(st.lists(st.floats(0, 1), min_size=len(odds), max_size=len(odds)))
    sets = list(combinations(range(len(odds)), k))
    weights = [prod(odds[expert] for expert in one) for one in sets]
    missed = sum(
        weight * prod(kept[expert] for expert in one)
        for one, weight in zip(sets, weights, strict=True)
    )

    found = chance_all_missed(np.array(odds), k, np.array(kept))

    assert float(found) == pytest.approx(missed / sum(weights))


@given(st.integers(1, 40), st.data())
def test_equal_odds_make_every_set_equally_likely(experts: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, experts))
    here = data.draw(st.integers(0, experts))
    kept = (np.arange(experts) >= here).astype(np.float64)

    missed = chance_all_missed(np.ones(experts), k, kept)

    assert float(missed) == pytest.approx(comb(experts - here, k) / comb(experts, k))
    assert pick_chances(np.ones(experts), k) == pytest.approx(np.full(experts, k / experts))


@given(odds_strategy, st.data())
def test_odds_are_found_again_from_the_chances_that_they_make(
    odds: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(odds)))
    chances = pick_chances(np.array([odds]), k)

    assert pick_chances(odds_for(chances, k), k) == pytest.approx(chances, abs=1e-5)


@pytest.mark.long
def test_384_experts_with_steep_loads_lose_no_digits() -> None:
    odds = np.arange(1, 385.0) ** -2.0

    chances = pick_chances(odds, 8)

    assert chances.sum() == pytest.approx(8, abs=1e-12)
    assert (np.diff(chances) < 0).all()
    assert pick_chances(odds_for(chances, 8), 8) == pytest.approx(chances, abs=1e-8)


def test_an_expert_without_load_is_never_picked() -> None:
    chances = np.array([0.9, 0.7, 0.4, 0.0])

    odds = odds_for(chances, 2)

    assert odds[3] == 0
    assert pick_chances(odds, 2) == pytest.approx(chances, abs=1e-8)


def test_loads_that_distinct_picks_cannot_make_are_refused() -> None:
    with pytest.raises(ValueError, match="at most once"):
        odds_for(np.array([1.5, 0.25, 0.25]), 2)
    with pytest.raises(ValueError, match="2 distinct experts"):
        odds_for(np.array([1.0, 0.0, 0.0]), 2)


def test_exactly_as_many_experts_as_picks_are_always_picked() -> None:
    odds = odds_for(np.array([1.0, 0.0, 1.0]), 2)

    assert pick_chances(odds, 2).tolist() == [1, 0, 1]
