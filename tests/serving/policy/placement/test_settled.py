import numpy as np
import pytest

from emulator.specs.placement import EMPTY
from serving.policy.placement.migration import keep_settled
from tests.serving.policy.placement.cases import placement

# Loads 6 2 | 1 1 -> 8 : 2, and 6 1 | 2 1 -> 7 : 3, a gain of one eighth
LOAD = np.array([[6, 2, 1, 1]])
WORSE = placement([[0, 1], [2, 3]], experts=4, ep=2)
BETTER = placement([[0, 2], [1, 3]], experts=4, ep=2)


def test_a_gain_that_is_large_enough_is_taken() -> None:
    assert keep_settled(LOAD, WORSE, BETTER, least_gain=0.12).expert_of_slot.tolist() == (
        BETTER.expert_of_slot.tolist()
    )


def test_a_smaller_gain_or_none_moves_nothing() -> None:
    for previous, balanced, least_gain in (
        (WORSE, BETTER, 0.13),
        (BETTER, WORSE, 0.0),
        (WORSE, WORSE, 0.0),
    ):
        kept = keep_settled(LOAD, previous, balanced, least_gain=least_gain)

        assert kept.expert_of_slot.tolist() == previous.expert_of_slot.tolist()


def test_groups_and_layers_are_judged_by_themselves() -> None:
    load = np.array([[6, 2, 1, 1], [1, 1, 1, 1]])
    previous = placement(
        [[0, 1], [2, 3], [0, 2], [1, 3]], [[0, 1], [2, 3], [0, 1], [2, 3]], experts=4, ep=2
    )
    balanced = placement(
        [[0, 2], [1, 3], [1, 3], [0, 2]], [[2, 3], [0, 1], [2, 3], [0, 1]], experts=4, ep=2
    )

    kept = keep_settled(load, previous, balanced)

    assert kept.expert_of_slot[0].tolist() == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert kept.expert_of_slot[1].tolist() == previous.expert_of_slot[1].tolist()


def test_a_placement_that_misses_an_expert_or_uses_a_lost_chip_is_not_kept() -> None:
    previous = placement([[0], [1], [EMPTY]], experts=2, ep=3)
    balanced = placement([[0], [EMPTY], [1]], experts=2, ep=3)
    load = np.array([[1, 1]])

    lost = keep_settled(load, previous, balanced, usable=np.array([True, False, True]))
    missing = keep_settled(load, previous.without([1]), balanced)

    for kept in (lost, missing):
        assert kept.expert_of_slot.tolist() == balanced.expert_of_slot.tolist()


def test_an_idle_lost_chip_is_no_reason_to_move() -> None:
    previous = placement([[0], [1], [EMPTY]], experts=2, ep=3)
    balanced = placement([[1], [0], [EMPTY]], experts=2, ep=3)

    kept = keep_settled(
        np.array([[1, 1]]), previous, balanced, usable=np.array([True, True, False])
    )

    assert kept.expert_of_slot.tolist() == previous.expert_of_slot.tolist()


def test_placements_of_different_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same layers, chips and slots"):
        keep_settled(LOAD, WORSE, placement([[0, 2, 1], [1, 3, 0]], experts=4, ep=2))
