from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.placement.packing import replicate, replicate_slowly


def test_the_next_copy_goes_to_the_heaviest_load_per_copy() -> None:
    # 12 -> 6, then 7 -> 3.5, then 6 -> 4
    load = np.array([[12.0, 7.0, 1.0]])

    assert replicate(load, copies=4, most=4).tolist() == [[2, 1, 1]]
    assert replicate(load, copies=5, most=4).tolist() == [[2, 2, 1]]
    assert replicate(load, copies=6, most=4).tolist() == [[3, 2, 1]]


def test_an_expert_has_no_more_copies_than_there_are_chips() -> None:
    assert replicate(np.array([[9.0, 1.0]]), copies=4, most=2).tolist() == [[2, 2]]
    assert replicate(np.array([[9.0, 1.0]]), copies=2, most=1).tolist() == [[1, 1]]


def test_a_layer_without_load_spreads_its_copies() -> None:
    assert replicate(np.zeros((1, 3)), copies=7, most=9).tolist() == [[3, 2, 2]]


@pytest.mark.parametrize(("copies", "most"), [(1, 4), (9, 4)])
def test_a_number_of_copies_that_cannot_be_dealt_is_our_own_mistake(copies: int, most: int) -> None:
    with pytest.raises(AssertionError):
        replicate(np.ones((1, 2)), copies=copies, most=most)


@given(data=st.data(), rows=st.integers(1, 4), experts=st.integers(1, 6), most=st.integers(1, 5))
def test_copies_agree_with_the_slow_reference(
    data: st.DataObject, rows: int, experts: int, most: int
) -> None:
    values = data.draw(
        st.lists(st.integers(0, 20), min_size=rows * experts, max_size=rows * experts)
    )
    load = np.array(values, dtype=np.float64).reshape(rows, experts)
    copies = data.draw(st.integers(experts, experts * most))

    count = replicate(load, copies=copies, most=most)

    assert count.tolist() == replicate_slowly(load, copies=copies, most=most).tolist()
    assert (count.sum(axis=1) == copies).all()
    assert ((count >= 1) & (count <= most)).all()


@pytest.mark.long
def test_no_other_deal_makes_the_heaviest_copy_lighter() -> None:
    for loads in product(range(6), repeat=3):
        load = np.array([loads], dtype=np.float64)
        for copies in range(3, 10):
            deals = [deal for deal in product(range(1, 4), repeat=3) if sum(deal) == copies]
            best = min((load[0] / deal).max() for deal in deals)

            assert (load / replicate(load, copies=copies, most=3)).max() == best
