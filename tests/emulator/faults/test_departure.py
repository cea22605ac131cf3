"""Which groups can leave a machine that serves on, and where their experts then lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.faults.departure import Departure, departure, home_on
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.seating import VACANT, Seating


def leave(
    partition: Partition,
    placement: ExpertPlacement,
    leaving: list[int],
    *,
    slots: int,
    others_serve: bool = False,
) -> Departure:
    return departure(
        placement,
        partition,
        leaving=leaving,
        seating=Seating.home(partition),
        ranks_up=np.ones(partition.ranks, dtype=np.bool_),
        capacity=np.full(partition.chips, slots, dtype=np.int64),
        others_serve=others_serve,
    )


def even(partition: Partition, experts: int, layers: int = 1) -> ExpertPlacement:
    return ExpertPlacement.even(
        layers=layers, experts=experts, chips=partition.chips, ep=partition.ep
    )


def test_one_of_four_chips_leaves_by_hand() -> None:
    partition = Partition(chips=4, ep=4)
    plan = leave(partition, even(partition, 8), [3], slots=3)

    # Experts 6 and 7 lay on chip 3, and go to the first two of those that hold fewest.
    assert plan.placement.expert_of_slot.tolist() == [
        [[0, 1, 6], [2, 3, 7], [4, 5, EMPTY], [6, 7, EMPTY]]
    ]
    assert (plan.positions, plan.copied) == ((3,), 2)
    assert (plan.slots_needed, plan.slots_there) == (8, 9)


def test_copies_that_lie_on_staying_chips_need_not_move() -> None:
    partition = Partition(chips=2, ep=2)
    slots = np.array([[[0, 1], [1, 0]]], dtype=np.int64)
    placement = ExpertPlacement(experts=2, ep=2, expert_of_slot=slots)

    assert leave(partition, placement, [1], slots=2).copied == 0


def test_experts_that_do_not_fit_are_refused_with_the_figures() -> None:
    partition = Partition(chips=4, ep=4)
    with pytest.raises(ConfigError, match="8 experts of a layer still fit: expert group 0 has "):
        leave(partition, even(partition, 8), [2, 3], slots=3)


def test_all_chips_leave_where_others_serve_and_no_expert_moves() -> None:
    partition = Partition(chips=4, ep=4)
    placement = even(partition, 8)
    plan = leave(partition, placement, [0, 1, 2, 3], slots=3, others_serve=True)

    assert plan.placement is placement
    assert (plan.positions, plan.copied) == ((0, 1, 2, 3), 0)
    part = leave(partition, placement, [3], slots=3, others_serve=True)
    assert part.copied == leave(partition, placement, [3], slots=3).copied == 2


def test_a_rank_has_to_stay_up() -> None:
    partition = Partition(chips=4, ep=2)
    with pytest.raises(ConfigError, match="at least one other one stays up"):
        leave(partition, even(partition, 4), [0, 1, 2, 3], slots=4)


def test_a_block_that_leaves_as_a_whole_takes_its_experts_with_it() -> None:
    partition = Partition(chips=4, ep=2)
    plan = leave(partition, even(partition, 4), [2, 3], slots=2)

    assert plan.copied == 0
    assert plan.placement.expert_of_slot.tolist() == even(partition, 4).expert_of_slot.tolist()


def test_a_group_of_which_nobody_stays_closes_no_rank_beside_it() -> None:
    # Ranks of 4 on expert groups of 6: without ranks 0 and 1 the first group has no chip.
    partition = Partition(chips=12, tp=4, ep=6)
    with pytest.raises(ConfigError, match="expert group 0 has memory for 0 on the chips that stay"):
        leave(partition, even(partition, 6), list(range(8)), slots=6)


@given(
    leaving=st.sets(st.integers(0, 7), min_size=1, max_size=6),
    experts=st.integers(1, 24),
    spare=st.integers(0, 12),
)
def test_what_leaves_is_held_by_what_stays_and_comes_home_as_it_was(
    leaving: set[int], experts: int, spare: int
) -> None:
    partition = Partition(chips=8, ep=8)
    home = even(partition, experts, layers=2)
    slots = home.slots + spare
    fits = (8 - len(leaving)) * slots >= experts
    try:
        plan = leave(partition, home, sorted(leaving), slots=slots)
    except ConfigError:
        assert not fits
        return
    assert fits
    after = plan.placement.without(sorted(leaving))
    assert after.missing() == []
    assert ((after.expert_of_slot != EMPTY).sum(axis=2) <= slots).all()
    # Nobody who stays has lost what he had, and those who leave still have everything.
    stays = plan.placement.expert_of_slot[:, :, : home.slots]
    assert ((stays == home.expert_of_slot) | (home.expert_of_slot == EMPTY)).all()

    seats = np.arange(8, dtype=np.int64)
    everywhere = np.full(8, slots, dtype=np.int64)
    up = np.ones(8, dtype=np.bool_)
    back = home_on(
        home,
        partition,
        seating=Seating(chip_of_position=seats.copy()),
        ranks_up=up,
        capacity=everywhere,
    )
    assert back.expert_of_slot.tolist() == home.expert_of_slot.tolist()
    seats[sorted(leaving)], up[sorted(leaving)] = VACANT, False
    some = home_on(
        home,
        partition,
        seating=Seating(chip_of_position=seats),
        ranks_up=up,
        capacity=everywhere,
    )
    assert some.missing() == []
    assert (some.expert_of_slot[:, sorted(leaving)] == EMPTY).all()
