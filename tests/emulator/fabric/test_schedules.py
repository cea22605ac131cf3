import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.group_layout import (
    hypercube,
    level_meshes,
    level_rings,
    levels,
    ring_shares,
)
from emulator.fabric.schedules import CollectiveSchedule, mesh, phases, ring
from tests.emulator.fabric.tori import torus


def grid(*sizes: int) -> np.ndarray:
    """Coordinates of all chips of a box, int64[chips, levels]."""
    return np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes, order="F"), axis=1)


def received(schedule: CollectiveSchedule) -> np.ndarray:
    return np.einsum("s,sij->j", schedule.times.astype(float), schedule.moved)


def gathered(coordinates: np.ndarray, order: list[int]) -> list[set[int]]:
    """A slow gathering in sets: in each phase chips that differ in one level alone swap all."""
    chips = len(coordinates)
    have = [{chip} for chip in range(chips)]
    for level in order:
        before = [set(own) for own in have]
        for one in range(chips):
            for other in range(chips):
                apart = coordinates[one] != coordinates[other]
                if apart.sum() == 1 and apart[level]:
                    have[one] |= before[other]
    return have


def test_two_by_three_chips_by_hand() -> None:
    stripes = np.array([1.0, 0.0])  # all of it ends with the level of two
    schedule = phases(grid(2, 3), stripes, level_meshes(grid(2, 3)))

    # first a sixth to both others of the level of three, then half to the partner
    assert schedule.moved[0][0].tolist() == pytest.approx([0, 0, 1 / 6, 0, 1 / 6, 0])
    assert schedule.moved[1][0].tolist() == pytest.approx([0, 1 / 2, 0, 0, 0, 0])


@pytest.mark.parametrize("chips", [2, 3, 8])
def test_in_a_mesh_and_a_ring_each_chip_gets_all_that_it_has_not(chips: int) -> None:
    shares = ring_shares(torus(chips), np.arange(chips))

    for schedule in (mesh(chips), ring(shares)):
        assert received(schedule) == pytest.approx((chips - 1) / chips)
    assert ring(shares).times.tolist() == [chips - 1]


@given(
    sizes=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    weights=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
)
def test_however_striped_each_chip_gets_all_that_it_has_not(
    sizes: list[int], weights: list[float]
) -> None:
    coordinates = grid(*sizes)
    stripe = np.array(weights[: len(sizes)])

    chips = len(coordinates)
    for moves, steps in ((level_meshes(coordinates), 1), (level_rings(coordinates), 3)):
        schedule = phases(coordinates, stripe / stripe.sum(), moves, steps=steps)

        assert received(schedule) == pytest.approx((chips - 1) / chips)
        assert schedule.times.tolist() == [steps] * len(sizes)


@pytest.mark.parametrize("sizes", [(2, 3), (4, 2, 2), (3, 3)])
def test_every_stripes_order_leaves_all_with_everything(sizes: tuple[int, ...]) -> None:
    coordinates = grid(*sizes)
    count = len(sizes)
    for last in range(count):
        order = [(last - 1 - step) % count for step in range(count)]
        assert order[-1] == last
        everything = set(range(len(coordinates)))
        assert gathered(coordinates, order) == [everything] * len(coordinates)


def test_recursive_doubling_sends_twice_as_much_each_time() -> None:
    cube = hypercube(torus(8), np.arange(8))
    schedule = phases(cube, np.array([1.0, 0.0, 0.0]), level_meshes(cube))

    assert [step.max() for step in schedule.moved] == pytest.approx([1 / 8, 2 / 8, 4 / 8])
    assert ((schedule.moved > 0).sum(axis=2) == 1).all()


def test_a_level_alone_is_a_mesh() -> None:
    alone = levels(torus(4), np.arange(4))
    assert phases(alone, np.ones(1), level_meshes(alone)).moved == pytest.approx(mesh(4).moved)


def test_a_ring_per_level_sends_half_to_both_neighbours_and_passes_the_rest_on() -> None:
    three_by_two = grid(3, 2)
    rings = level_rings(three_by_two)

    # its own part and one that it passes on, half each way; a level of two has one partner
    assert rings[0][0].tolist() == [0, 1, 1, 0, 0, 0]
    assert rings[1][0].tolist() == [0, 0, 0, 1, 0, 0]
    assert level_rings(grid(5))[0][0].tolist() == [0, 2, 0, 0, 2]
    one = phases(grid(4), np.ones(1), level_rings(grid(4)), steps=3)
    around = ring(ring_shares(torus(4), np.arange(4)))
    assert one.moved == pytest.approx(around.moved)
    assert one.times.tolist() == around.times.tolist()


def test_the_stripe_that_ends_with_the_nearest_level_starts_with_the_farthest() -> None:
    coordinates = grid(2, 2, 2)  # chip 1 is one level away, chip 2 two, chip 4 three

    near, far = (
        phases(coordinates, stripe, level_meshes(coordinates)) for stripe in np.eye(3)[[0, 2]]
    )

    assert [int(step[0].argmax()) for step in near.moved] == [4, 2, 1]
    assert [int(step[0].argmax()) for step in far.moved] == [2, 1, 4]
