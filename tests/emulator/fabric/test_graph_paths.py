from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.shortest_paths import GraphPaths
from emulator.fabric.tier_paths import TierPaths
from emulator.fabric.tiers import Tier
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from tests.emulator.fabric.tori import torus

START_NS = system_by_name("trn2-ultraserver").chip.dma_start_ns.value


def random_payload(chips: int, seed: int) -> np.ndarray:
    payload = np.random.default_rng(seed).integers(0, 10_000, (1, chips, chips)).astype(float)
    payload[:, np.arange(chips), np.arange(chips)] = 0.0
    return payload


def both_ways(
    system: SystemSpec, chips: np.ndarray, links: LinkHealth | None = None
) -> tuple[GraphPaths, TierPaths]:
    links = links or LinkHealth.whole(system)
    return GraphPaths(system, chips, links), TierPaths(system, chips, len(chips), links)


@pytest.mark.long
@given(
    seed=st.integers(0, 2**16),
    chips=st.sets(st.integers(0, 71), min_size=2, max_size=10),
    share=st.sampled_from([1.0, 0.5, 0.25]),
)
def test_in_a_rack_the_graph_takes_as_long_as_each_chips_own_lanes(
    seed: int, chips: set[int], share: float
) -> None:
    numbers = np.array(sorted(chips))
    links = LinkHealth.whole(TRN3_NL72X2)
    links.share[numbers[0], Tier.BACKPLANE] = links.share[numbers[-1], Tier.TRAY] = share
    graph, tiers = both_ways(TRN3_NL72X2, numbers, links)
    payload = random_payload(len(numbers), seed)

    own = graph.busy_ns(payload)[:, : len(numbers)]
    assert own == pytest.approx(tiers.busy_ns(payload)[:, : len(numbers)])
    assert graph.latency_ns == pytest.approx(tiers.latency_ns)


@pytest.mark.parametrize("name", ["dgx-h800", "gb200-nvl72"])
@given(seed=st.integers(0, 2**16))
def test_boxes_and_their_cluster_take_as_long_in_the_graph(name: str, seed: int) -> None:
    system = system_by_name(name).cluster(2)
    half = system.chips.count // 2
    numbers = np.concatenate([np.arange(4), half + np.arange(3)])
    graph, tiers = both_ways(system, numbers)
    payload = random_payload(7, seed)

    assert graph.busy_ns(payload)[:, :7] == pytest.approx(tiers.busy_ns(payload))
    assert graph.latency_ns == pytest.approx(tiers.latency_ns)


@pytest.mark.long
def test_an_even_exchange_of_both_racks_takes_as_long_in_the_graph() -> None:
    numbers = np.arange(144)
    graph, tiers = both_ways(TRN3_NL72X2, numbers)
    payload = np.ones((1, 144, 144))

    assert graph.busy_ns(payload)[0, :144] == pytest.approx(tiers.busy_ns(payload)[0])


@given(seed=st.integers(0, 2**16))
def test_cables_between_racks_are_no_busier_than_the_busier_of_their_chips(seed: int) -> None:
    # Half of a chip's bytes go over its own cable and half over the receiver's, whose loads are
    # means of what the tiers charge to one chip alone.
    numbers = np.array([0, 1, 5, 72, 73, 77])
    graph, tiers = both_ways(TRN3_NL72X2, numbers)
    across = random_payload(6, seed)
    across[:, :3, :3] = across[:, 3:, 3:] = 0.0

    carried = graph._ways.link_bytes(across)[0]
    wires = graph._ways.graph
    cables = wires.tier == Tier.CROSS_RACK
    cable_ns = (carried[cables] / wires.bytes_per_s[cables]).max() * 1e9
    assert cable_ns <= tiers.busy_ns(across).max() + 1e-9


def test_a_ring_of_four_by_hand() -> None:
    fabric = AllToAll(torus(4), 4)  # 128 bytes a ns and link
    payload = np.zeros((4, 4))
    payload[0] = [0, 1_280, 2_560, 1_280]

    exchange = fabric.exchange(payload)

    # 1,280 to each neighbour, and half of 2,560 over each of them
    assert exchange.link_busy_ns.tolist() == pytest.approx([20, 20, 10, 20])
    assert exchange.duration_ns == pytest.approx(20 + START_NS + 2 * 1_000)


def test_chips_on_the_way_are_passed_though_they_are_not_of_the_partition() -> None:
    fabric = AllToAll(torus(4), 2, physical=np.array([0, 2]))
    payload = np.array([[0.0, 2_560.0], [0.0, 0.0]])

    assert fabric.exchange(payload).duration_ns == pytest.approx(10 + START_NS + 2 * 1_000)


def test_an_even_exchange_of_a_torus_is_bound_by_its_bisection() -> None:
    # 64 chips, 32 of which each send to 32 across the middle of the last dimension: 16 rings, each
    # cut twice, in 64 GB/s links
    system = torus(4, 4, 4, trays=4)
    payload = np.ones((64, 64)) - np.eye(64)

    busy_ns = AllToAll(system, 64).exchange(payload).link_busy_ns

    assert busy_ns.max() == pytest.approx(32 * 32 / (16 * 2 * 64))
    assert busy_ns.min() == pytest.approx(busy_ns.max()), "all places of a torus are alike"


def test_a_cut_cable_makes_an_exchange_slower_and_a_lost_chip_cannot_be_reached() -> None:
    system = torus(4, 4)
    payload = np.ones((16, 16)) - np.eye(16)
    whole = AllToAll(system, 16).exchange(payload).duration_ns

    cut = replace(LinkHealth.whole(system), cut_links=frozenset({(0, 1)}))
    assert AllToAll(system, 16, links=cut).exchange(payload).duration_ns > whole

    lost = LinkHealth.whole(system)
    lost.share[5] = 0.0
    fabric = AllToAll(system, 16, links=lost)
    with pytest.raises(ValueError, match="from position 0 to 5"):
        fabric.exchange(payload)
    payload[5] = payload[:, 5] = 0.0
    assert fabric.exchange(payload).duration_ns > 0
    vacant = AllToAll(system, 16, physical=np.where(np.arange(16) == 5, VACANT, np.arange(16)))
    assert not vacant.reachable()[0, 5]


def test_switches_leave_no_cable_of_two_chips_to_cut() -> None:
    cut = replace(LinkHealth.whole(TRN3_NL72X2), cut_links=frozenset({(0, 1)}))

    with pytest.raises(ValueError, match="no links of two chips"):
        AllToAll(TRN3_NL72X2, 4, links=cut)


@given(seed=st.integers(0, 2**16), more=st.integers(0, 2**16))
def test_more_bytes_and_slower_links_never_take_less_time_on_a_torus(seed: int, more: int) -> None:
    system = torus(4, 3)
    payload, added = random_payload(12, seed)[0], random_payload(12, more)[0]
    slow = LinkHealth.whole(system)
    slow.share[seed % 12, Tier.TRAY] = 0.5
    fabric = AllToAll(system, 12)

    once = fabric.exchange(payload).duration_ns
    assert fabric.exchange(payload + added).duration_ns >= once
    assert AllToAll(system, 12, links=slow).exchange(payload).duration_ns >= once - 1e-9


def test_layers_together_take_what_each_takes_alone_on_a_torus() -> None:
    fabric = AllToAll(torus(3, 2), 6)
    layers = np.concatenate([random_payload(6, seed) for seed in range(3)] + [np.zeros((1, 6, 6))])

    together = fabric.exchange_layers(layers)

    alone = [fabric.exchange(layer) for layer in layers]
    assert together.duration_ns.tolist() == [exchange.duration_ns for exchange in alone]
    assert together.duration_ns[-1] == 0


def test_skewed_tokens_cost_time_on_a_mesh_of_single_links() -> None:
    system = system_by_name("mi300x-8")
    per_link = system.chip.link_tray_bytes_per_s.value / 7 / 1e9
    even = np.full((8, 8), 1_000.0) - 1_000 * np.eye(8)
    skewed = np.zeros((8, 8))
    skewed[:, 0] = 7_000.0
    skewed[0, 0] = 0.0

    fabric = AllToAll(system, 8)

    assert fabric.exchange(even).link_busy_ns.max() == pytest.approx(1_000 / per_link)
    assert fabric.exchange(skewed).link_busy_ns.max() == pytest.approx(7_000 / per_link)


def test_a_slow_chip_half_way_makes_both_ends_wait() -> None:
    system = torus(8)
    links = LinkHealth.whole(system)
    links.share[2] = 0.25  # chips 0 and 4 reach each other past 1, 2 and 3, or past 5, 6 and 7
    fabric = AllToAll(system, 2, physical=np.array([0, 4]), links=links)
    payload = np.array([[0.0, 2_560.0], [0.0, 0.0]])

    exchange = fabric.exchange(payload)

    assert exchange.link_busy_ns.tolist() == pytest.approx([10, 10]), "at their own links"
    assert exchange.duration_ns == pytest.approx(40 + START_NS + 4 * 1_000)
