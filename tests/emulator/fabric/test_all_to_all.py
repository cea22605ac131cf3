import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.tiers import tier_bytes_per_s, tiers_between
from emulator.specs.trn3_nl72x2 import TRN3_NL72X2

TRAY = AllToAll(TRN3_NL72X2, 4)
START_NS, HOP_NS = 1_300, 1_000


def payloads(chips: int) -> st.SearchStrategy[np.ndarray]:
    cell = st.integers(0, 10_000)
    row = st.lists(cell, min_size=chips, max_size=chips)
    matrix = st.lists(row, min_size=chips, max_size=chips)
    return matrix.map(lambda rows: np.array(rows, dtype=np.float64))


def slow_busy_ns(payload: np.ndarray, chip: int) -> float:
    """One pair after the other, as many queues as a chip has tiers and directions."""
    tiers = tiers_between(TRN3_NL72X2, len(payload))
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
