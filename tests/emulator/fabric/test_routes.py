from collections import deque
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import UNREACHABLE, Routes, find_routes
from emulator.fabric.tiers import Tier, tiers_of
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.seating import VACANT
from emulator.specs.systems import system_by_name

START_NS, HOP_NS = 1_300, 1_000
NODES = np.array([0, 1, 2, 3, 4, 5, 72, 73])  # a tray, a second one, and two of the other rack


def links_without(*gone: tuple[int, Tier]) -> LinkHealth:
    links = LinkHealth.whole(TRN3_NL72X2)
    for chip, tier in gone:
        links.share[chip, tier] = 0
    return links


def routes_without(*gone: tuple[int, Tier], nodes: np.ndarray = NODES) -> Routes:
    return find_routes(TRN3_NL72X2, nodes, links_without(*gone))


def way(routes: Routes, sender: int, receiver: int) -> list[int]:
    nodes = [sender]
    while nodes[-1] != receiver:
        nodes.append(int(routes.next_node[nodes[-1], receiver]))
    return nodes


def test_whole_links_join_every_pair_directly() -> None:
    routes = routes_without()

    assert (routes.direct == tiers_of(TRN3_NL72X2, NODES)).all()
    assert (routes.legs == 1 - np.eye(8)).all()
    assert routes.reachable().all()


def test_a_chip_without_backplane_goes_over_its_tray_mates_in_turn() -> None:
    routes = routes_without((0, Tier.BACKPLANE))

    assert [way(routes, 0, 4), way(routes, 0, 5)] == [[0, 2, 4], [0, 3, 5]]
    assert [way(routes, 4, 0), way(routes, 5, 0)] == [[4, 2, 0], [5, 3, 0]]
    assert way(routes, 1, 4) == [1, 4], "others are as before"
    assert way(routes, 0, 6) == [0, 6], "and so are its other tiers"


def test_two_trays_without_backplane_meet_over_the_other_rack() -> None:
    gone = [(chip, Tier.BACKPLANE) for chip in range(4)]

    assert way(routes_without(*gone), 0, 4) in ([0, 6, 4], [0, 7, 4])


def test_two_chips_without_a_tier_in_common_take_a_mate_of_each() -> None:
    # With the other rack away, chips 0 and 4 have only their boards.
    nodes = np.array([0, 1, 4, 5])
    routes = routes_without((0, Tier.BACKPLANE), (4, Tier.BACKPLANE), nodes=nodes)

    assert way(routes, 0, 2) == [0, 1, 3, 2]
    assert routes.legs[0, 2] == 3


def test_a_chip_without_tray_lanes_meets_its_tray_over_the_backplane() -> None:
    routes = routes_without((0, Tier.TRAY))

    assert routes.direct[0, :4].tolist() == [Tier.SELF] + [Tier.BACKPLANE] * 3
    assert routes.direct[1, 2] == Tier.TRAY


def test_a_chip_without_lanes_reaches_nobody_and_the_rest_do_not_notice() -> None:
    routes = routes_without((1, Tier.TRAY), (1, Tier.BACKPLANE), (1, Tier.CROSS_RACK))

    reachable = routes.reachable()
    assert reachable[1].tolist() == reachable[:, 1].tolist() == (np.arange(8) == 1).tolist()
    others = np.delete(np.arange(8), 1)
    assert (routes.direct[np.ix_(others, others)] == tiers_of(TRN3_NL72X2, NODES[others])).all()


def test_a_vacant_place_reaches_nobody() -> None:
    routes = routes_without(nodes=np.array([0, VACANT, VACANT, 3]))

    assert routes.reachable().tolist() == [
        [True, False, False, True],
        [False, True, False, False],
        [False, False, True, False],
        [True, False, False, True],
    ]


def test_every_leg_of_a_detour_starts_a_transfer_and_counts_its_hops() -> None:
    nodes = np.array([0, 1, 4, 5])
    latency_ns = routes_without((0, Tier.BACKPLANE), nodes=nodes).latency_ns(TRN3_NL72X2)

    assert latency_ns[0, 1] == START_NS + HOP_NS
    assert latency_ns[1, 2] == START_NS + 3 * HOP_NS
    assert latency_ns[0, 2] == latency_ns[2, 0] == 2 * START_NS + (1 + 3) * HOP_NS
    assert latency_ns[0, 0] == 0


def test_there_is_no_latency_without_a_way() -> None:
    nodes = np.array([0, 1])
    latency_ns = routes_without((0, Tier.TRAY), (0, Tier.BACKPLANE), nodes=nodes).latency_ns(
        TRN3_NL72X2
    )

    assert latency_ns.tolist() == [[0, np.inf], [np.inf, 0]]


def slow_legs(direct: np.ndarray, sender: int) -> list[int]:
    """Breadth first from one chip."""
    legs = [int(UNREACHABLE)] * len(direct)
    legs[sender] = 0
    waiting = deque([sender])
    while waiting:
        node = waiting.popleft()
        for other in np.flatnonzero(direct[node]).tolist():
            if legs[other] == UNREACHABLE:
                legs[other] = legs[node] + 1
                waiting.append(other)
    return legs


GONE = st.lists(
    st.tuples(
        st.sampled_from(NODES.tolist()),
        st.sampled_from([Tier.TRAY, Tier.BACKPLANE, Tier.CROSS_RACK]),
    )
)


@given(gone=GONE)
def test_ways_are_as_short_as_a_search_from_each_chip_finds(gone: list[tuple[int, Tier]]) -> None:
    routes = routes_without(*gone)

    assert (routes.direct == routes.direct.T).all()
    for sender in range(8):
        assert routes.legs[sender].tolist() == slow_legs(routes.direct, sender)


@given(gone=GONE)
def test_a_way_has_its_legs_and_each_of_them_is_direct(gone: list[tuple[int, Tier]]) -> None:
    routes = routes_without(*gone)

    for sender, receiver in np.argwhere(routes.reachable()).tolist():
        nodes = way(routes, sender, receiver)
        assert len(nodes) - 1 == routes.legs[sender, receiver]
        assert all(routes.direct[leg] for leg in pairwise(nodes))


def test_a_chip_without_its_only_links_is_cut_off_and_not_sent_over_links_it_never_had() -> None:
    box = system_by_name("dgx-h200")
    links = LinkHealth.whole(box)
    links.share[0, Tier.TRAY] = 0

    routes = find_routes(box, np.arange(3), links)

    assert routes.reachable().astype(int).tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
