import numpy as np
import pytest

from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT, Seating

PARTITION = Partition(chips=3, ep=3, first_chip=8, spares=2)


def test_at_first_every_chip_is_at_home_and_the_spares_stand_by() -> None:
    seating = Seating.home(PARTITION)
    whole = Health.whole(TRN3_NL72X2, PARTITION)

    assert seating.chip_of_position.tolist() == [0, 1, 2]
    assert seating.system_chips(PARTITION).tolist() == [8, 9, 10]
    assert seating.standby(whole).tolist() == [3, 4]


def test_a_chip_that_lost_its_seat_stands_by_once_it_works_and_a_broken_spare_does_not() -> None:
    seating = Seating(chip_of_position=np.array([0, 3, VACANT]))
    health = Health.whole(TRN3_NL72X2, PARTITION)
    for chip in (1, 4):
        fault = Fault(kind=FaultKind.LOSE_CHIP, chip=chip)
        health = health.after(fault, TRN3_NL72X2, PARTITION)

    assert seating.system_chips(PARTITION).tolist() == [8, 11, VACANT]
    assert seating.standby(health).tolist() == [2]
    assert seating.standby(health.healed(1)).tolist() == [1, 2]


@pytest.mark.parametrize(
    "seats",
    [np.array([0, 0]), np.array([0, -2]), np.array([[0, 1]]), np.array([0.0, 1.0])],
    ids=["one chip twice", "no chip", "two axes", "not whole"],
)
def test_seats_that_are_none_are_refused(seats: np.ndarray) -> None:
    with pytest.raises(ValueError, match="position"):
        Seating(chip_of_position=seats)


def test_several_positions_may_be_vacant() -> None:
    assert Seating(chip_of_position=np.array([VACANT, VACANT])).chip_of_position.size == 2
