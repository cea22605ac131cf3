from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.graph import FabricGraph
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.shortest_paths import Ways, find_ways
from emulator.fabric.wiring import fabric_graph
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.systems import system_by_name
from tests.emulator.fabric.tori import torus

SMALL = {
    "2": torus(2),
    "5": torus(5),
    "2x2": torus(2, 2),
    "3x3": torus(3, 3),
    "4x3": torus(4, 3),
    "2x3x2": torus(2, 3, 2),
    "4x2 in two trays": torus(4, 2, trays=2),
    "mesh": system_by_name("mi300x-8"),
}


def ways_of(graph: FabricGraph) -> Ways:
    return find_ways(graph, np.arange(graph.chips))


def by_enumeration(graph: FabricGraph, sender: int, receiver: int) -> dict[tuple[int, int], float]:
    """Every shortest way by another's algorithm, each with an equal part of the bytes."""
    net = nx.DiGraph()
    for link in range(graph.links):
        ends = int(graph.source[link]), int(graph.target[link])
        net.add_edge(*ends, weight=graph.latency_ns[link])
    ways = list(nx.all_shortest_paths(net, sender, receiver, weight="weight"))
    carried: dict[tuple[int, int], float] = {}
    for way in ways:
        for ends in pairwise(way):
            carried[ends] = carried.get(ends, 0.0) + 1 / len(ways)
    return carried


@pytest.mark.parametrize("name", SMALL)
def test_every_pairs_bytes_take_the_ways_that_enumeration_finds(name: str) -> None:
    graph = fabric_graph(SMALL[name])
    ways = ways_of(graph)
    link_of = {
        (int(graph.source[link]), int(graph.target[link])): link for link in range(graph.links)
    }

    share = ways.share.toarray()
    for sender in range(graph.chips):
        for receiver in range(graph.chips):
            expected = np.zeros(graph.links)
            if sender != receiver:
                for ends, part in by_enumeration(graph, sender, receiver).items():
                    expected[link_of[ends]] = part
            column = sender * graph.chips + receiver
            assert share[:, column] == pytest.approx(expected), (sender, receiver)


def test_in_a_square_the_opposite_corner_is_reached_both_ways_by_hand() -> None:
    graph = fabric_graph(torus(2, 2))
    ways = ways_of(graph)
    payload = np.zeros((4, 4))
    payload[0, 3] = 100
    payload[0, 1] = 10

    carried = ways.link_bytes(payload)

    found = {
        (int(graph.source[link]), int(graph.target[link])): carried[link]
        for link in np.flatnonzero(carried)
    }
    assert found == {(0, 1): 50 + 10, (0, 2): 50, (1, 3): 50, (2, 3): 50}
    assert ways.latency_ns[0].tolist() == [0, 1_000, 1_000, 2_000]


def test_latency_is_a_hop_per_link_and_the_farthest_of_4_x_4_x_4_is_six_away() -> None:
    ways = ways_of(fabric_graph(system_by_name("trn2-ultraserver")))

    hop_ns = system_by_name("trn2-ultraserver").hop_ns.value
    counts = np.unique(ways.latency_ns[0] / hop_ns, return_counts=True)
    # 1 + 2t + t^2 for each dimension, to the third power: (1 + t)^6
    assert [counts[0].tolist(), counts[1].tolist()] == [list(range(7)), [1, 6, 15, 20, 15, 6, 1]]


def test_the_switched_fabric_has_one_three_and_four_hops_and_fewer_to_a_neighbour_across() -> None:
    ways = find_ways(fabric_graph(TRN3_NL72X2), np.array([0, 1, 4, 72, 73, 76]))

    # in the tray, in the rack, the same place across, its tray, another tray across
    assert ways.latency_ns[0].tolist() == [0, 1_000, 3_000, 1_000, 2_000, 4_000]


@given(
    name=st.sampled_from(["2x2", "4x3", "2x3x2", "4x2 in two trays", "mesh"]),
    seed=st.integers(0, 2**16),
)
def test_what_enters_a_chip_for_others_leaves_it_again(name: str, seed: int) -> None:
    graph = fabric_graph(SMALL[name])
    payload = np.random.default_rng(seed).integers(0, 1_000, (graph.chips,) * 2).astype(float)
    np.fill_diagonal(payload, 0.0)

    carried = ways_of(graph).link_bytes(payload)

    out = np.bincount(graph.source, carried, graph.nodes)
    into = np.bincount(graph.target, carried, graph.nodes)
    sent, received = payload.sum(axis=1), payload.sum(axis=0)
    assert out[: graph.chips] - sent == pytest.approx(into[: graph.chips] - received)


@pytest.mark.long
@given(
    cut=st.sets(st.sampled_from([(0, 1), (1, 2), (0, 4), (5, 6), (3, 0)]), min_size=1),
    seed=st.integers(0, 2**16),
)
def test_a_cut_cable_is_gone_around_and_no_way_gets_shorter(
    cut: set[tuple[int, int]], seed: int
) -> None:
    system = torus(4, 3)
    whole = ways_of(fabric_graph(system))
    links = LinkHealth(share=LinkHealth.whole(system).share, cut_links=frozenset(cut))
    left = ways_of(fabric_graph(system, links))
    payload = np.random.default_rng(seed).random((12, 12)) * (1 - np.eye(12))

    assert np.isfinite(left.latency_ns).all()
    assert (left.latency_ns >= whole.latency_ns).all()
    # more links are passed in all, never fewer
    assert left.link_bytes(payload).sum() >= whole.link_bytes(payload).sum() - 1e-9


def test_a_chip_without_links_reaches_itself_alone() -> None:
    system = torus(3)
    links = LinkHealth.whole(system)
    links.share[1] = 0.0

    ways = ways_of(fabric_graph(system, links))

    assert np.isfinite(ways.latency_ns).tolist() == [
        [True, False, True],
        [False, True, False],
        [True, False, True],
    ]
