import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.specs.placement import EMPTY, ExpertPlacement
from serving.placement.restoration import restore
from tests.serving.placement.cases import loads_for, placement, placements


def test_a_lost_expert_takes_the_place_of_the_copy_that_is_missed_least() -> None:
    # Chip 2 is lost with expert 3. Expert 0 (8) lies twice, expert 1 (2) three times.
    before = placement([[0, 1], [0, 1], [3, 1], [2, 1]], experts=4, ep=4)
    usable = np.array([True, True, False, True])

    after = restore(np.array([[8, 2, 1, 3]]), before, usable)

    # On chip 3 it replaces expert 1: chips are then 5 5 - 4.
    assert after.expert_of_slot.tolist() == [[[0, 1], [0, 1], [EMPTY, EMPTY], [2, 3]]]


def test_an_empty_slot_is_taken_before_a_copy_that_others_would_miss() -> None:
    before = placement([[0, 1], [0, EMPTY], [2, 1]], experts=3, ep=3)

    after = restore(np.array([[4, 4, 2]]), before, np.array([True, True, False]))

    assert after.expert_of_slot.tolist() == [[[0, 1], [0, 2], [EMPTY, EMPTY]]]


def test_the_heaviest_of_the_lost_chooses_first() -> None:
    before = placement([[3, EMPTY], [0, EMPTY], [1, 2]], experts=4, ep=3)

    after = restore(np.array([[5, 1, 9, 0]]), before, np.array([True, True, False]))

    assert after.expert_of_slot.tolist() == [[[3, 2], [0, 1], [EMPTY, EMPTY]]]


def test_an_expert_of_which_a_copy_is_left_moves_nothing() -> None:
    before = placement([[0, 1], [1, 0]], experts=2, ep=2)

    after = restore(np.array([[1, 1]]), before, np.array([True, False]))

    assert after.expert_of_slot.tolist() == [[[0, 1], [EMPTY, EMPTY]]]


def test_too_few_slots_are_refused_with_how_many_would_do() -> None:
    before = placement([[0, 1], [2, 3]], experts=4, ep=2)

    with pytest.raises(ConfigError, match=r"slots=2: .* of 4 experts on the 1 usable .*, 4 a chip"):
        restore(np.ones((1, 4)), before, np.array([True, False]))
    with pytest.raises(ConfigError, match=r"on the 0 usable chips of expert group 0$"):
        restore(np.ones((1, 4)), before, np.array([False, False]))


@given(data=st.data(), before=placements())
def test_every_lost_expert_comes_back_with_one_move_when_there_is_room(
    data: st.DataObject, before: ExpertPlacement
) -> None:
    load = data.draw(loads_for(before, by_group=data.draw(st.booleans())))
    flags = st.lists(st.booleans(), min_size=before.chips, max_size=before.chips)
    usable = np.array(data.draw(flags))
    left = before.without(np.flatnonzero(~usable).tolist())
    slots_left = usable.reshape(-1, before.ep).sum(axis=1) * before.slots  # [groups]
    short = {group for group, _, _ in left.missing() if slots_left[group] < before.experts}
    if short:
        with pytest.raises(ConfigError):
            restore(load, before, usable)
        return

    after = restore(load, before, usable)

    assert after.missing() == []
    assert (after.expert_of_slot[:, ~usable] == EMPTY).all()
    changed = after.expert_of_slot != left.expert_of_slot
    assert np.count_nonzero(changed) == len(left.missing())
