"""The fewest machines for replicas of several sizes."""

from collections.abc import Sequence
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.analysis.plan.machine_packing import PackedMachines, packed

ROOM = 60


def machines(packing: Sequence[PackedMachines]) -> int:
    return sum(each.machines for each in packing)


def fewest(sizes: tuple[int, ...], counts: tuple[int, ...], room: int) -> int:
    """By trying every fill of every machine."""
    fills = [
        fill
        for fill in product(*(range(room // size + 1) for size in sizes))
        if any(fill) and sum(map(int.__mul__, sizes, fill)) <= room
    ]

    @cache
    def of(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        after = {
            tuple(max(0, n - taken) for n, taken in zip(left, fill, strict=True)) for fill in fills
        }
        return 1 + min(of(each) for each in after - {left})

    return of(counts)


def test_largest_first_wastes_a_machine_that_the_program_saves() -> None:
    # 60 + 60, then 48 + 48 + 36, then 36 would be three of 144 chips; each of two has one of each.
    assert packed([60, 48, 36], [2, 2, 2], room=144) == (
        PackedMachines(machines=2, replicas=(1, 1, 1), free_chips=0),
    )


def test_what_fits_beside_the_large_ones_takes_no_machine_of_its_own() -> None:
    assert packed([72, 8], [3, 9], room=144) == (
        PackedMachines(machines=1, replicas=(2, 0), free_chips=0),
        PackedMachines(machines=1, replicas=(1, 9), free_chips=0),
    )


def test_hundreds_of_replicas_of_five_sizes_are_packed_at_once() -> None:
    sizes, counts = [50, 46, 34, 29, 20], [211, 97, 150, 310, 5]
    packing = packed(sizes, counts, room=144)

    assert machines(packing) == 207  # 203 machines' worth of chips; largest first takes 227
    assert [sum(each.machines * each.replicas[n] for each in packing) for n in range(5)] == counts


@pytest.mark.long
@settings(max_examples=200)
@given(
    # Of a fifth to a half of a machine, largest first often is not the answer.
    kinds=st.lists(st.tuples(st.integers(12, 31), st.integers(0, 4)), min_size=1, max_size=3),
)
def test_no_packing_of_small_cases_has_fewer_machines(kinds: list[tuple[int, int]]) -> None:
    sizes, counts = zip(*kinds, strict=True)
    packing = packed(sizes, counts, room=ROOM)

    assert machines(packing) == fewest(sizes, counts, ROOM)
    for kind, count in enumerate(counts):
        assert sum(each.machines * each.replicas[kind] for each in packing) == count
    for each in packing:
        used = sum(map(int.__mul__, sizes, each.replicas))
        assert each.free_chips == ROOM - used >= 0
        assert used


def test_no_machine_has_more_of_a_kind_than_may_be_lost_with_it() -> None:
    # Twelve of 10 chips fill one machine; with at most five on each it takes three.
    packing = packed([10, 30], [12, 2], room=120, most=[5, 4])

    assert machines(packing) == 3
    assert all(each.replicas[0] <= 5 for each in packing)
    assert sum(each.machines * each.replicas[0] for each in packing) == 12
    assert machines(packed([10, 30], [12, 2], room=120)) == 2


def test_a_replica_larger_than_a_machine_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        packed([145], [1], room=144)
