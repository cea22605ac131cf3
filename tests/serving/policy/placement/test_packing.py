from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.placement.packing import pack, pack_slowly, part_twins


def test_the_heaviest_item_goes_first_and_to_the_lightest_pack_with_room() -> None:
    # 8 | , 8 | 7, 8 | 7 6 and full, so 8 5 |
    load = np.array([[5.0, 8.0, 6.0, 7.0]])

    assert pack(load, np.arange(4)[None], 2).tolist() == [[[1, 0], [3, 2]]]


def test_copies_of_one_expert_spread_before_loads_do() -> None:
    # After 6 | 3: the second copy of expert 1 leaves its own pack, though that one is lighter.
    load = np.array([[6.0, 3.0, 3.0, 0.0]])
    expert = np.array([[0, 1, 1, 2]])

    assert pack(load, expert, 2).tolist() == [[[0, 2], [1, 3]]]


def test_packs_of_unequal_numbers_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        pack(np.ones((1, 3)), np.arange(3)[None], 2)


@st.composite
def copies_of_experts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Loads and experts [rows, items], and a number of packs that divides the items."""
    packs, size, rows = (draw(st.integers(1, most)) for most in (4, 4, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    experts = draw(st.integers(1, packs * size))
    expert = random.integers(0, experts, (rows, packs * size))
    load = random.integers(0, draw(st.integers(1, 12)), (rows, experts)).astype(np.float64)
    return np.take_along_axis(load, expert, axis=1), expert, packs


@given(case=copies_of_experts())
def test_packs_agree_with_the_slow_reference_and_hold_every_item_once(
    case: tuple[np.ndarray, np.ndarray, int],
) -> None:
    load, expert, packs = case

    packed = pack(load, expert, packs)

    assert packed.tolist() == pack_slowly(load, expert, packs).tolist()
    for row in packed.reshape(len(load), -1):
        assert sorted(row) == list(range(load.shape[1]))


def test_a_twin_goes_to_the_chip_without_it_in_exchange_for_the_nearest_load() -> None:
    held = np.array([[0, 0], [1, 2], [3, 4]])

    part_twins(held, np.array([5.0, 9.0, 1.0, 4.0, 2.0]))

    assert held.tolist() == [[0, 3], [1, 2], [0, 4]]


def test_more_copies_than_chips_cannot_be_parted() -> None:
    with pytest.raises(AssertionError, match="more copies than there are chips"):
        part_twins(np.array([[0, 0], [0, 1]]), np.ones(2))


@given(data=st.data(), chips=st.integers(1, 5), slots=st.integers(1, 5))
def test_twins_can_always_be_parted_when_no_expert_has_more_copies_than_chips(
    data: st.DataObject, chips: int, slots: int
) -> None:
    experts = data.draw(st.integers(slots, chips * slots))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Every expert `chips` times, of which as many as there are slots, in any order
    dealt = random.permutation(np.repeat(np.arange(experts), chips))[: chips * slots]
    held = dealt.reshape(chips, slots)
    before = Counter(held.ravel().tolist())

    part_twins(held, random.random(experts))

    assert Counter(held.ravel().tolist()) == before
    assert all(len(set(row)) == slots for row in held.tolist())
