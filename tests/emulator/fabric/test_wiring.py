from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.fabric.graph import FabricGraph, NodeKind
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier
from emulator.fabric.wiring import fabric_graph
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name
from tests.emulator.fabric.tori import figure, torus


def links_out_of(graph: FabricGraph, node: int) -> np.ndarray:
    return np.flatnonzero(graph.source == node)


def gb_per_s(graph: FabricGraph, chip: int) -> dict[Tier, float]:
    """What a chip sends per tier, over all links of the tier."""
    sums: Counter[Tier] = Counter()
    for link in links_out_of(graph, chip):
        sums[Tier(int(graph.tier[link]))] += graph.bytes_per_s[link] / 1e9
    return dict(sums)


def after(*faults: Fault) -> FabricGraph:
    partition = Partition(chips=144, ep=144)
    health = Health.whole(TRN3_NL72X2, partition)
    for fault in faults:
        health = health.after(fault, TRN3_NL72X2, partition)
    return fabric_graph(TRN3_NL72X2, LinkHealth.of(health, TRN3_NL72X2, partition))


def test_an_nl72x2_has_a_switch_per_tray_ten_per_backplane_and_a_cable_per_pair_of_racks() -> None:
    graph = fabric_graph(TRN3_NL72X2)

    kinds = Counter(graph.kinds)
    assert kinds == {NodeKind.CHIP: 144, NodeKind.SWITCH: 36 + 2 * 10}
    # to and from the tray's switch, each of ten switch trays, and the other rack's chip
    assert graph.links == 144 * (2 + 2 * 10 + 1)
    assert gb_per_s(graph, 5) == pytest.approx(
        {Tier.TRAY: 512, Tier.BACKPLANE: 512, Tier.CROSS_RACK: 128}
    )
    lanes = {Tier(int(graph.tier[link])): graph.lanes[link] for link in links_out_of(graph, 5)}
    assert lanes == {Tier.TRAY: 64, Tier.BACKPLANE: 80 / 10, Tier.CROSS_RACK: 16}
    across = [link for link in links_out_of(graph, 5) if graph.tier[link] == Tier.CROSS_RACK]
    assert graph.target[across].tolist() == [72 + 5]


def test_a_pulled_switch_tray_is_a_switch_less_and_two_of_them_cost_no_bandwidth() -> None:
    pull = Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=1)

    two, three = after(pull, pull), after(pull, pull, pull)

    assert Counter(two.kinds)[NodeKind.SWITCH] == 36 + 10 + 8
    assert gb_per_s(two, 100)[Tier.BACKPLANE] == pytest.approx(512)
    assert gb_per_s(three, 100)[Tier.BACKPLANE] == pytest.approx((80 - 3 * 8) * 8)
    assert gb_per_s(three, 5)[Tier.BACKPLANE] == pytest.approx(512), "the other rack"


def test_sixteen_cut_lanes_are_absorbed_and_the_seventeenth_is_not() -> None:
    def cut(lanes: int) -> Fault:
        return Fault(kind=FaultKind.CUT_LINK, chip=3, tier=LinkTier.BACKPLANE, lanes=lanes)

    assert gb_per_s(after(cut(16)), 3)[Tier.BACKPLANE] == pytest.approx(512)
    assert gb_per_s(after(cut(17)), 3)[Tier.BACKPLANE] == pytest.approx(63 * 8)
    assert Tier.BACKPLANE not in gb_per_s(after(cut(0)), 3)


def test_a_trn2_ultraserver_has_four_links_in_a_tray_and_two_beyond() -> None:
    system = system_by_name("trn2-ultraserver")
    graph = fabric_graph(system)

    assert set(graph.kinds) == {NodeKind.CHIP}
    assert graph.links == 64 * 6
    assert gb_per_s(graph, 21) == {
        Tier.TRAY: pytest.approx(system.chip.link_tray_bytes_per_s.value / 1e9),
        Tier.CROSS_RACK: pytest.approx(system.chip.link_cross_rack_bytes_per_s.value / 1e9),
    }
    # chip 21 = 1 + 4 x 1 + 16 x 1
    assert sorted(graph.target[links_out_of(graph, 21)].tolist()) == [5, 17, 20, 22, 25, 37]


def test_a_dimension_of_two_has_both_its_links_to_the_same_neighbour() -> None:
    graph = fabric_graph(torus(2, 2))

    assert graph.links == 8
    assert graph.bytes_per_s.tolist() == [256e9] * 8


def test_a_cut_cable_is_gone_both_ways_and_no_other() -> None:
    system = torus(4)
    links = replace(LinkHealth.whole(system), cut_links=frozenset({(1, 0)}))

    left = fabric_graph(system, links)

    ends = set(zip(left.source.tolist(), left.target.tolist(), strict=True))
    assert ends == {(1, 2), (2, 1), (2, 3), (3, 2), (3, 0), (0, 3)}


def test_eight_gpus_of_a_mesh_have_a_link_for_each_other_one() -> None:
    system = system_by_name("mi300x-8")
    graph = fabric_graph(system)

    assert graph.links == 8 * 7
    total = system.chip.link_tray_bytes_per_s.value
    assert np.unique(graph.bytes_per_s).tolist() == pytest.approx([total / 7])


def test_boxes_of_a_cluster_meet_in_one_network() -> None:
    graph = fabric_graph(system_by_name("dgx-h800").cluster(3))

    assert Counter(graph.kinds) == {NodeKind.CHIP: 24, NodeKind.SWITCH: 3, NodeKind.NETWORK: 1}
    assert gb_per_s(graph, 20) == pytest.approx({Tier.TRAY: 200, Tier.SCALE_OUT: 50})


def test_trays_that_are_no_whole_dimensions_are_refused_in_one_line() -> None:
    odd = replace(torus(4, 4), trays_per_rack=figure(2), chips_per_tray=figure(8))

    with pytest.raises(ConfigError, match=r"torus=\(4, 4\): expected first dimensions that make"):
        fabric_graph(odd)
