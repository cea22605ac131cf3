"""Which chips a chip is connected to."""

import pytest

from emulator.fabric.connected_chips import connected_chips
from emulator.fabric.graph import NodeKind
from emulator.fabric.wiring import fabric_graph
from emulator.specs.systems import SYSTEMS, system_by_name

# As neuron-ls prints them for a trn2n.48xlarge (AWS Neuron SDK docs, neuron-ls.rst).
TRN2_OF_THE_VENDOR = (
    "12, 3, 4, 1",
    "13, 0, 5, 2",
    "14, 1, 6, 3",
    "15, 2, 7, 0",
    "0, 7, 8, 5",
    "1, 4, 9, 6",
    "2, 5, 10, 7",
    "3, 6, 11, 4",
    "4, 11, 12, 9",
    "5, 8, 13, 10",
    "6, 9, 14, 11",
    "7, 10, 15, 8",
    "8, 15, 0, 13",
    "9, 12, 1, 14",
    "10, 13, 2, 15",
    "11, 14, 3, 12",
)


def test_a_torus_is_listed_as_the_vendor_lists_it() -> None:
    connected = connected_chips(system_by_name("trn2.48xlarge"))

    assert tuple(", ".join(map(str, others)) for others in connected) == TRN2_OF_THE_VENDOR


def test_switched_chips_meet_at_their_tray_and_have_a_link_to_the_other_rack() -> None:
    connected = connected_chips(system_by_name("trn3-nl72x2"))

    assert connected[0] == (1, 2, 3, 72)
    assert connected[77] == (76, 78, 79, 5)
    assert connected[143] == (140, 141, 142, 71)


def test_meshed_chips_have_a_link_to_each_other_of_the_tray() -> None:
    assert connected_chips(system_by_name("mi300x-8"))[3] == (0, 1, 2, 4, 5, 6, 7)


def test_units_of_a_cluster_are_not_connected() -> None:
    one, two = (connected_chips(system_by_name("trn3-nl32x2").cluster(units)) for units in (1, 2))

    assert two[: len(one)] == one
    assert two[64] == tuple(64 + chip for chip in one[0])


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_direct_link_of_the_fabric_is_listed_and_both_ends_list_it(name: str) -> None:
    system = system_by_name(name)
    graph = fabric_graph(system)
    direct = {
        (source, target)
        for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True)
        if graph.kinds[source] is NodeKind.CHIP and graph.kinds[target] is NodeKind.CHIP
    }
    connected = connected_chips(system)
    listed = {(chip, other) for chip, others in enumerate(connected) for other in others}

    assert direct <= listed
    assert listed == {(other, chip) for chip, other in listed}
    assert all(chip not in others for chip, others in enumerate(connected))
    if not any(kind is NodeKind.SWITCH for kind in graph.kinds):
        assert listed == direct
