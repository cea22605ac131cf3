from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.placement import EMPTY
from serving.policy.placement.packing import (
    keep_slots,
    keep_slots_slowly,
    match_packs,
    match_packs_slowly,
)


def test_a_pack_goes_where_most_of_its_experts_lie() -> None:
    new = np.array([[[0, 1, 2], [3, 4, 5]]])
    old = np.array([[[3, 4, 0], [1, 2, EMPTY]]])

    assert match_packs(new, old, 6).tolist() == [[1, 0]]


def test_packs_with_nothing_in_common_stay_in_order() -> None:
    new = np.array([[[0], [1], [2]]])

    assert match_packs(new, np.full((1, 3, 1), EMPTY), 3).tolist() == [[0, 1, 2]]


@st.composite
def new_and_old(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Two lots of experts [rows, packs, slots]; in the new one, a pack has each at most once."""
    rows, packs, slots = (draw(st.integers(1, most)) for most in (3, 4, 4))
    experts = draw(st.integers(slots, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    new = random.permuted(np.tile(np.arange(experts), (rows, packs, 1)), axis=2)[..., :slots]
    new[..., slots - draw(st.integers(0, slots)) :] = EMPTY
    old = random.integers(EMPTY, experts, (rows, packs, slots))
    return new, old, experts


@given(case=new_and_old())
def test_matching_agrees_with_the_slow_reference(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    new, old, experts = case

    taken_by = match_packs(new, old, experts)

    assert taken_by.tolist() == match_packs_slowly(new, old, experts).tolist()
    assert all(sorted(row) == list(range(new.shape[1])) for row in taken_by.tolist())


@given(case=new_and_old())
def test_matching_keeps_at_least_half_of_what_the_best_would(
    case: tuple[np.ndarray, np.ndarray, int],
) -> None:
    new, old, experts = case
    for row, taken_by in enumerate(match_packs(new, old, experts).tolist()):

        def kept(order: tuple[int, ...], row: int = row) -> int:
            pairs = zip(order, old[row], strict=True)
            return sum(len(set(new[row, p]) & set(place) - {EMPTY}) for p, place in pairs)

        best = max(kept(order) for order in permutations(range(new.shape[1])))

        assert 2 * kept(tuple(taken_by)) >= best


def test_an_expert_that_stays_keeps_its_slot_and_the_others_fill_the_rest_in_order() -> None:
    new = np.array([7, 8, 2, 9, EMPTY])
    old = np.array([1, 2, 3, 8, 4])

    assert keep_slots(new, old).tolist() == [7, 2, 9, 8, EMPTY]


@given(case=new_and_old())
def test_slots_agree_with_the_slow_reference(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    new, old, _ = case

    kept = keep_slots(new, old)

    assert kept.tolist() == keep_slots_slowly(new, old).tolist()
    assert np.sort(kept, axis=-1).tolist() == np.sort(new, axis=-1).tolist()
