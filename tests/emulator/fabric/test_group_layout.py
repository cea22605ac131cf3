import numpy as np
import pytest

from emulator.fabric.group_layout import hypercube, level_meshes, levels, ring_shares
from emulator.fabric.wiring import neighbours, places
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.systems import system_by_name
from tests.emulator.fabric.tori import torus


def test_levels_of_switched_chips_are_their_place_in_the_tray_the_tray_and_the_rack() -> None:
    assert levels(TRN3_NL72X2, np.array([4, 5, 8, 9])).tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert levels(TRN3_NL72X2, np.array([0, 72])).tolist() == [[0], [1]]
    assert levels(TRN3_NL72X2, np.arange(144)).max(axis=0).tolist() == [3, 17, 1]
    assert levels(TRN3_NL72X2, np.array([0, 1, 2, 4, 5])) is None, "three of a tray and two"


def test_levels_of_a_cluster_end_with_its_units() -> None:
    boxes = system_by_name("dgx-h800").cluster(4)

    assert levels(boxes, np.arange(32)).max(axis=0).tolist() == [7, 3]


def test_levels_of_a_torus_are_its_dimensions() -> None:
    system = torus(4, 3, 2)

    assert levels(system, np.arange(24)).tolist() == places(system).tolist()
    assert levels(system, np.arange(4)).tolist() == [[0], [1], [2], [3]]


def test_partners_in_the_hypercube_of_a_torus_are_neighbours() -> None:
    # The vendor: the 2D torus can be seen as a 4D hypercube.
    system = torus(4, 4)
    cube = hypercube(system, np.arange(16))

    assert cube.shape == (16, 4)
    beside = {
        (chip, int(other))
        for dimension in range(2)
        for chip, ways in enumerate(neighbours(system, dimension))
        for other in ways
    }
    partners = np.argwhere(level_meshes(cube).any(axis=0)).tolist()
    assert len(partners) == 16 * 4
    assert {tuple(pair) for pair in partners} == beside


def test_a_hypercube_needs_a_power_of_two_and_no_full_levels() -> None:
    assert hypercube(TRN3_NL72X2, np.arange(6)) is None
    assert hypercube(TRN3_NL72X2, np.array([0, 1, 2, 4])).tolist() == [
        [0, 0],
        [1, 0],
        [0, 1],
        [1, 1],
    ]


@pytest.mark.parametrize(
    ("chips", "others"), [(np.arange(16), 4), (np.arange(4), 2), (np.array([3, 7, 2, 6]), 2)]
)
def test_rings_leave_each_chip_of_a_torus_over_its_own_links(
    chips: np.ndarray, others: int
) -> None:
    system = torus(4, 4)
    shares = ring_shares(system, chips)

    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert shares.sum(axis=0) == pytest.approx(1.0)
    assert ((shares > 0).sum(axis=1) == others).all()
    near = {
        (chip, int(other))
        for dimension in range(2)
        for chip, ways in enumerate(neighbours(system, dimension))
        for other in ways
    }
    for sender, receiver in np.argwhere(shares > 0):
        assert (chips[sender], chips[receiver]) in near


def test_switched_chips_make_one_ring_both_ways_and_a_mesh_as_many_as_it_has_links() -> None:
    ring = ring_shares(TRN3_NL72X2, np.arange(5))
    mesh = ring_shares(system_by_name("mi300x-8"), np.arange(8))

    assert ring[2].tolist() == [0, 0.5, 0, 0.5, 0]
    assert mesh[0].tolist() == pytest.approx([0] + [1 / 7] * 7)
