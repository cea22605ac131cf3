import numpy as np

from emulator.faults.seats import OUT_OF_SERVICE, Seats, SlotCapacity, islands, take_seats
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.seating import VACANT, Seating
from tests.emulator.faults.machine import lose


def seats_after(
    lost: list[int],
    *,
    partition: Partition,
    sitting: list[int] | None = None,
    capacity: list[int] | None = None,
    experts: int = 0,
    lent: tuple[int, ...] = (),
) -> Seats:
    """All links are whole; `lost` and `lent` are chips, the lent ones sit in their positions."""
    health = Health.whole(TRN3_NL72X2, partition)
    for chip in lost:
        health = health.after(lose(chip), TRN3_NL72X2, partition)
    health = health.lending(lent)
    chips = partition.chips + partition.spares
    return take_seats(
        partition,
        TRN3_NL72X2,
        health,
        Seating(chip_of_position=np.array(sitting or range(partition.chips))),
        room=SlotCapacity(
            capacity=np.array(capacity or [1] * partition.chips),
            experts=experts,
            lent=frozenset(lent),
        ),
        reachable=np.ones((chips, chips), dtype=np.bool_),
    )


def test_an_island_is_named_after_its_lowest_chip_in_service() -> None:
    partition = Partition(chips=5, ep=5)
    health = Health.whole(TRN3_NL72X2, partition).after(lose(0), TRN3_NL72X2, partition)
    reachable = np.kron(np.eye(2), np.ones((3, 3))).astype(np.bool_)[:5, :5]  # 0-2 and 3-4

    assert islands(health, reachable).tolist() == [OUT_OF_SERVICE, 1, 1, 3, 3]


def test_the_seats_with_most_room_are_filled_when_room_is_what_lacks() -> None:
    partition = Partition(chips=4, ep=4, spares=2)

    seats = seats_after([0, 1, 2], partition=partition, capacity=[1, 3, 3, 1], experts=7)

    assert seats.filled == (1, 2)
    assert seats.seating.chip_of_position.tolist() == [VACANT, 4, 5, 3]


def test_repaired_chips_go_home_before_others_are_seated() -> None:
    # Chip 1 works again; position 0 is nearer to it than to chip 8, but it is not its home.
    partition = Partition(chips=8, ep=8, spares=1)

    seats = seats_after([0], partition=partition, sitting=[0, VACANT, 2, 3, 4, 5, 6, 7])

    assert seats.seating.chip_of_position.tolist() == [8, 1, 2, 3, 4, 5, 6, 7]


def test_a_repaired_chip_goes_home_rather_than_a_lower_one_of_its_tray() -> None:
    # Chip 8 holds the seat of chip 0, so chips 0 and 1 both stand by for position 1.
    partition = Partition(chips=8, ep=8, spares=1)

    seats = seats_after([], partition=partition, sitting=[8, VACANT, 2, 3, 4, 5, 6, 7])

    assert seats.seating.chip_of_position.tolist() == [8, 1, 2, 3, 4, 5, 6, 7]


def test_a_chip_of_the_tray_is_nearer_than_a_lower_one() -> None:
    # Chip 1 was repaired while chip 8 holds its seat; chip 5 is of chip 4's tray.
    partition = Partition(chips=5, ep=5, spares=4)

    seats = seats_after([4, 6, 7], partition=partition, sitting=[0, 8, 2, 3, 4])

    assert seats.seating.chip_of_position.tolist() == [0, 8, 2, 3, 5]


def test_a_chip_of_the_rack_is_nearer_than_a_lower_one_of_the_other() -> None:
    # Chips 0 and 1 end rack 0, the others begin rack 1: chip 0 stands by, and so does chip 7.
    partition = Partition(chips=6, ep=6, first_chip=70, spares=2)

    seats = seats_after([3], partition=partition, sitting=[6, 1, 2, 3, 4, 5])

    assert seats.seating.chip_of_position.tolist() == [6, 1, 2, 7, 4, 5]


def test_nobody_takes_the_seat_of_a_lent_chip_whatever_stands_by() -> None:
    partition = Partition(chips=4, tp=2, ep=4, spares=2)

    seats = seats_after([], partition=partition, lent=(2, 3))

    assert seats.seating.chip_of_position.tolist() == [0, 1, VACANT, VACANT]
    assert seats.ranks_up.tolist() == [True, False]
    assert seats.closed == {}


def test_standby_chips_replace_those_that_died_beside_lent_ones() -> None:
    partition = Partition(chips=4, tp=2, ep=4, spares=2)

    seats = seats_after([0], partition=partition, lent=(2, 3), experts=2)

    assert seats.seating.chip_of_position.tolist() == [4, 1, VACANT, VACANT]


def test_a_block_that_needs_a_lent_seat_closes() -> None:
    partition = Partition(chips=4, ep=4, spares=2)

    seats = seats_after([], partition=partition, capacity=[1, 1, 1, 5], experts=5, lent=(3,))

    assert seats.closed == {0: "5 experts do not fit into the 3 slots that are left"}
    assert not seats.ranks_up.any()


def test_chips_that_come_back_go_home_where_another_seat_is_as_good() -> None:
    # Of positions 1, 2 and 3 nobody sits in, chips 2 and 3 are back.
    partition = Partition(chips=4, ep=4)

    seats = seats_after([1], partition=partition, sitting=[0, VACANT, VACANT, VACANT])

    assert seats.seating.chip_of_position.tolist() == [0, VACANT, 2, 3]
