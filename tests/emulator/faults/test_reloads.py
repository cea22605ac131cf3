import numpy as np
import pytest

from emulator.faults.reloads import Reloads, plan_reloads
from emulator.specs.placement import EMPTY, ExpertPlacement


def reload(
    held: list[list[int]], *, experts: int, gone: list[int], filled: tuple[int, ...] = ()
) -> Reloads:
    """One layer and one group; every position has memory for the slots it has."""
    placement = ExpertPlacement(
        experts=experts, ep=len(held), expert_of_slot=np.array([held], dtype=np.int64)
    )
    seated = [p for p in range(len(held)) if p not in gone or p in filled]
    return plan_reloads(
        placement,
        gone=np.array(gone, dtype=np.int64),
        filled=np.array(filled, dtype=np.int64),
        seated=np.array(seated, dtype=np.int64),
        capacity=np.full(len(held), placement.slots),
        groups=np.array([0]),
    )


def test_experts_go_over_those_with_most_copies_and_to_chips_in_turn() -> None:
    # 0 lies three times, 1 twice, 2 once. Expert 3 takes a slot of 0 on the first chip; then 0 and
    # 1 lie twice each, and expert 4 takes one on the next chip, which has read nothing yet.
    reloads = reload([[1, 0], [0, 1], [0, 2], [3, 4]], experts=5, gone=[3])

    assert reloads.placement.expert_of_slot[0].tolist() == [
        [1, 3],
        [4, 1],
        [0, 2],
        [EMPTY, EMPTY],
    ]
    assert reloads.taken_over == 0


def test_a_filled_seat_reads_what_lay_there_in_its_own_slots() -> None:
    reloads = reload([[0, EMPTY], [EMPTY, 1]], experts=2, gone=[1], filled=(1,))

    assert [(each.expert, each.chip, each.slot) for each in reloads.transfers] == [(1, 1, 1)]
    assert reloads.placement.expert_of_slot[0].tolist() == [[0, EMPTY], [EMPTY, 1]]


def test_a_hole_between_experts_is_used() -> None:
    reloads = reload([[0, EMPTY, 1], [2, EMPTY, EMPTY]], experts=3, gone=[1])

    assert reloads.placement.expert_of_slot[0].tolist() == [[0, 2, 1], [EMPTY] * 3]


def test_experts_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        reload([[0, 1], [2, 3]], experts=4, gone=[1])
