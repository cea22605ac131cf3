import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import find_routes
from emulator.fabric.tiers import Tier, tier_bytes_per_s, tiers_of
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.seating import VACANT

TRAY = AllToAll(TRN3_NL72X2, 4)
START_NS, HOP_NS = 1_300, 1_000


def payloads(chips: int) -> st.SearchStrategy[np.ndarray]:
    cell = st.integers(0, 10_000)
    row = st.lists(cell, min_size=chips, max_size=chips)
    matrix = st.lists(row, min_size=chips, max_size=chips)
    return matrix.map(lambda rows: np.array(rows, dtype=np.float64))


def slow_busy_ns(payload: np.ndarray, chip: int) -> float:
    """One pair after the other, as many queues as a chip has tiers and directions."""
    tiers = tiers_of(TRN3_NL72X2, np.arange(len(payload)))
    queues: dict[tuple[str, int], float] = {}
    for other in range(len(payload)):
        if other == chip:
            continue
        tier = int(tiers[chip, other])
        rate = tier_bytes_per_s(TRN3_NL72X2, tier) / 1e9
        for way, moved in (("out", payload[chip, other]), ("in", payload[other, chip])):
            queues[way, tier] = queues.get((way, tier), 0.0) + moved / rate
    return max(queues.values())


def test_a_chip_sends_to_its_three_neighbours_one_after_the_other() -> None:
    payload = np.zeros((4, 4))
    payload[0, 1:] = 512

    exchange = TRAY.exchange(payload)

    assert exchange.link_busy_ns.tolist() == pytest.approx([3, 1, 1, 1])
    assert exchange.duration_ns == pytest.approx(3 + START_NS + HOP_NS)


def test_a_chip_receives_from_its_neighbours_one_after_the_other() -> None:
    payload = np.zeros((4, 4))
    payload[1:, 0] = 1_024

    assert TRAY.exchange(payload).link_busy_ns.tolist() == pytest.approx([6, 2, 2, 2])


def test_both_directions_run_side_by_side() -> None:
    payload = np.zeros((4, 4))
    payload[0, 1] = payload[1, 0] = 512

    assert TRAY.exchange(payload).link_busy_ns.tolist() == pytest.approx([1, 1, 0, 0])


def test_tiers_run_side_by_side_and_the_way_across_racks_is_four_times_slower() -> None:
    payload = np.zeros((144, 144))
    payload[0, 1] = payload[0, 4] = payload[0, 72] = 512

    exchange = AllToAll(TRN3_NL72X2, 144).exchange(payload)

    busy = exchange.link_busy_ns
    assert (busy[0], busy[1], busy[4], busy[72]) == pytest.approx((4, 1, 1, 4))
    assert exchange.duration_ns == pytest.approx(4 + START_NS + 4 * HOP_NS)


def test_what_a_chip_keeps_is_free_and_nothing_takes_no_time() -> None:
    assert TRAY.exchange(np.diag([1e9] * 4)).duration_ns == 0
    assert AllToAll(TRN3_NL72X2, 1).exchange(np.array([[1e9]])).duration_ns == 0


@given(payload=payloads(6))
def test_the_matrix_form_equals_one_pair_after_the_other(payload: np.ndarray) -> None:
    exchange = AllToAll(TRN3_NL72X2, 6).exchange(payload)

    expected = [slow_busy_ns(payload, chip) for chip in range(6)]
    assert exchange.link_busy_ns.tolist() == pytest.approx(expected)


@given(payload=payloads(5), more=payloads(5))
def test_more_bytes_never_take_less_time(payload: np.ndarray, more: np.ndarray) -> None:
    fabric = AllToAll(TRN3_NL72X2, 5)

    assert fabric.exchange(payload + more).duration_ns >= fabric.exchange(payload).duration_ns


@given(payload=payloads(5))
def test_the_way_back_takes_as_long_as_the_way_there(payload: np.ndarray) -> None:
    fabric = AllToAll(TRN3_NL72X2, 5)

    back = fabric.exchange(payload.T).duration_ns
    assert back == pytest.approx(fabric.exchange(payload).duration_ns)


def links_with(*shares: tuple[int, Tier, float]) -> LinkHealth:
    links = LinkHealth.whole(TRN3_NL72X2)
    for chip, tier, share in shares:
        links.share[chip, tier] = share
    return links


def test_a_chip_with_a_quarter_of_its_lanes_takes_four_times_as_long_and_its_partner_does_not() -> (
    None
):
    fabric = AllToAll(TRN3_NL72X2, 4, links=links_with((0, Tier.TRAY, 0.25)))
    payload = np.zeros((4, 4))
    payload[0, 1] = payload[2, 3] = 512

    exchange = fabric.exchange(payload)

    assert exchange.link_busy_ns.tolist() == pytest.approx([4, 1, 1, 1])
    assert exchange.duration_ns == pytest.approx(4 + START_NS + HOP_NS)


def test_a_detour_loads_the_mate_on_both_its_tiers() -> None:
    # Chip 0 has no backplane: what it has for chip 4 goes over chip 2, the mate whose turn it is.
    fabric = AllToAll(TRN3_NL72X2, 8, links=links_with((0, Tier.BACKPLANE, 0)))
    payload = np.zeros((8, 8))
    payload[0, 4] = 512
    payload[2, 3] = 1_024  # the mate's own, on its board lanes' way out
    payload[2, 5] = 1_536  # and on its backplane lanes' way out, before the 512 it passes on

    exchange = fabric.exchange(payload)

    assert exchange.link_busy_ns.tolist() == pytest.approx([1, 0, 4, 2, 1, 3, 0, 0])
    assert exchange.duration_ns == pytest.approx(4 + 2 * START_NS + (1 + 3) * HOP_NS)


def test_a_relay_passes_on_what_no_chip_of_the_partition_can() -> None:
    # Position 0 is chip 0 without backplane, position 1 chip 4; chip 1 stands by between them.
    physical = np.array([0, 4])
    links = links_with((0, Tier.BACKPLANE, 0), (0, Tier.CROSS_RACK, 0), (1, Tier.TRAY, 0.5))
    payload = np.array([[0.0, 512.0], [0.0, 0.0]])

    alone = AllToAll(TRN3_NL72X2, 2, physical=physical, links=links)
    relayed = AllToAll(TRN3_NL72X2, 2, physical=physical, relays=np.array([1]), links=links)

    assert alone.reachable().tolist() == [[True, False], [False, True]]
    assert relayed.reachable().all()
    exchange = relayed.exchange(payload)
    assert exchange.link_busy_ns.tolist() == pytest.approx([1, 1]), "the partition's own chips"
    relay_ns = 2  # it has half of its board lanes
    assert exchange.duration_ns == pytest.approx(relay_ns + 2 * START_NS + 4 * HOP_NS)


def test_bytes_between_chips_that_no_link_joins_are_refused_by_name() -> None:
    fabric = AllToAll(TRN3_NL72X2, 3, physical=np.array([0, VACANT, 2]))
    payload = np.zeros((3, 3))
    payload[0, 2] = payload[1, 1] = 512
    assert fabric.exchange(payload).link_busy_ns.tolist() == pytest.approx([1, 0, 1])

    payload[2, 1] = 1
    with pytest.raises(ValueError, match="from position 2 to 1"):
        fabric.exchange(payload)


def test_a_partition_on_other_chips_has_their_tiers() -> None:
    payload = np.zeros((4, 4))
    payload[0, 2] = 512

    # Chips 2 to 5: positions 0 and 1 in one tray, 2 and 3 in the next.
    shifted = AllToAll(TRN3_NL72X2, 4, first_chip=2)
    # Position 2 is taken by a chip of the other rack.
    replaced = AllToAll(TRN3_NL72X2, 4, physical=np.array([0, 1, 72, 3]))

    assert shifted.exchange(payload).duration_ns == pytest.approx(1 + START_NS + 3 * HOP_NS)
    assert replaced.exchange(payload).duration_ns == pytest.approx(4 + START_NS + 4 * HOP_NS)


def test_a_place_for_every_position_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"int64\[4\]"):
        AllToAll(TRN3_NL72X2, 4, physical=np.arange(3))
    with pytest.raises(ValueError, match="chips 0 to 143"):
        AllToAll(TRN3_NL72X2, 4, first_chip=141)


CUTS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.sampled_from([Tier.TRAY, Tier.BACKPLANE]),
        st.sampled_from([0.0, 0.25, 1.0]),
    )
)


def slow_link_busy_ns(payload: np.ndarray, links: LinkHealth) -> np.ndarray:
    """Every pair's bytes carried by hand along its way, leg by leg."""
    chips = len(payload)
    routes = find_routes(TRN3_NL72X2, np.arange(chips), links)
    queues = np.zeros((2, len(Tier), chips))
    for sender, receiver in np.argwhere(payload > 0).tolist():
        at = sender
        while at != receiver:
            to = int(routes.next_node[at, receiver])
            tier = Tier(int(routes.direct[at, to]))
            for way, chip in enumerate((at, to)):
                rate = links.bytes_per_s(TRN3_NL72X2, tier)[chip] / 1e9
                queues[way, tier, chip] += payload[sender, receiver] / rate
            at = to
    return queues.max(axis=(0, 1))


@given(payload=payloads(7), cuts=CUTS)
def test_with_cut_links_the_matrix_form_equals_one_leg_after_the_other(
    payload: np.ndarray, cuts: list[tuple[int, Tier, float]]
) -> None:
    links = links_with(*cuts)
    fabric = AllToAll(TRN3_NL72X2, 7, links=links)
    payload = payload * fabric.reachable() * (1 - np.eye(7))

    exchange = fabric.exchange(payload)

    assert exchange.link_busy_ns == pytest.approx(slow_link_busy_ns(payload, links))


@given(payload=payloads(5), more=payloads(5), cuts=CUTS)
def test_layers_together_take_what_each_takes_alone(
    payload: np.ndarray, more: np.ndarray, cuts: list[tuple[int, Tier, float]]
) -> None:
    fabric = AllToAll(TRN3_NL72X2, 5, links=links_with(*cuts))
    layers = np.array([payload, more, 0 * payload]) * fabric.reachable()

    together = fabric.exchange_layers(layers)

    alone = [fabric.exchange(layer) for layer in layers]
    assert together.duration_ns.tolist() == [exchange.duration_ns for exchange in alone]
    assert together.link_busy_ns.tolist() == [each.link_busy_ns.tolist() for each in alone]
