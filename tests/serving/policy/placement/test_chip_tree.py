import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.placement.balance import ChipTree
from tests.serving.policy.placement.cases import Machine, machine, machines


def tree(place: Machine, chips: list[int]) -> ChipTree:
    return ChipTree.of(np.array(chips), **place.places)


def test_a_whole_machine_divides_into_racks_trays_and_chips() -> None:
    place = machine(racks=2, trays=18, chips=4)

    assert tree(place, list(range(144))).parts == (2, 18, 4)
    assert tree(place, list(range(144))).racks == 2
    assert tree(place, list(range(72))).parts == (18, 4)
    assert tree(place, list(range(4))).parts == (4,)
    assert tree(place, [5]).parts == (1,)


def test_a_lost_chip_takes_away_the_levels_that_it_makes_unequal() -> None:
    place = machine(racks=2, trays=2, chips=2)

    assert tree(place, [0, 1, 2, 3, 4, 5, 6]).parts == (7,)
    assert tree(place, [0, 1, 2, 4, 5, 6]).parts == (2, 3)  # one in each rack: trays are unequal
    assert tree(place, [0, 1, 2, 3, 4, 5]).parts == (3, 2)  # a whole tray: racks are unequal
    assert tree(place, [0, 1, 2, 3, 4, 5]).racks == 1


def test_leaves_come_rack_by_rack_and_tray_by_tray() -> None:
    place = Machine(tray_of_chip=np.array([1, 0, 1, 0]), rack_of_chip=np.zeros(4, dtype=np.int64))

    assert tree(place, [0, 1, 2, 3]).chips == (1, 3, 0, 2)
    assert tree(place, [0, 1, 2, 3]).parts == (2, 2)


@given(data=st.data(), place=machines)
def test_the_parts_multiply_to_the_chips_whatever_is_lost(
    data: st.DataObject, place: Machine
) -> None:
    everything = st.sets(st.integers(0, place.chips - 1), min_size=1)
    chips = sorted(data.draw(everything))

    found = tree(place, chips)

    assert int(np.prod(found.parts)) == len(chips)
    assert list(found.chips) == chips  # these machines are numbered in the order of the tree
    assert len(found.parts) == 1 or min(found.parts) > 1
