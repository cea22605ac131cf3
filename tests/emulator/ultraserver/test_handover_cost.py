from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from emulator.fabric.all_to_all import AllToAll
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure
from emulator.specs.work_energy import work_energy_of
from emulator.ultraserver.handover_cost import (
    HandoverCost,
    checkpoint_write,
    experts_moved,
    weights_read,
)

ENERGY = work_energy_of(TRN3_NL72X2.chip)
TWO_CHIPS = AllToAll(TRN3_NL72X2, 2)


def gigabytes(*counts: float) -> np.ndarray:
    return np.array(counts) * 1e9


def test_a_tray_of_four_chips_reads_at_28_gb_a_second_and_writes_at_14_by_hand() -> None:
    chips = np.array([0, 1, 4])  # two of the first tray, one of the second

    read = weights_read(TRN3_NL72X2, chips, gigabytes(14, 14, 7))
    written = checkpoint_write(TRN3_NL72X2, chips, gigabytes(14, 14, 7))

    assert (read.duration_ns, written.duration_ns) == (10**9, 2 * 10**9)
    assert read.bytes_storage == written.bytes_storage == 35 * 10**9
    assert read.bytes_links == 0
    each_bit = (ENERGY.link.value + ENERGY.hbm.value) * 1e-12
    assert read.joules == written.joules == pytest.approx(8 * 35e9 * each_bit)


def test_the_slower_of_drives_and_host_link_counts() -> None:
    fast = Figure(value=1e12, unit="bytes/s per tray", source="assumed: a test's")
    rates = replace(RecoveryRates(), drives_bytes_per_s=fast, drives_write_bytes_per_s=fast)

    for cost in (
        weights_read(TRN3_NL72X2, np.array([3]), gigabytes(128), rates),
        checkpoint_write(TRN3_NL72X2, np.array([3]), gigabytes(128), rates),
    ):
        assert cost.duration_ns == 10**9


def test_experts_cross_the_links_as_an_exchange_of_their_bytes() -> None:
    sent = np.zeros((3, 3))
    sent[1, 0] = 2e9

    links = AllToAll(TRN3_NL72X2, 3, physical=np.array([8, 9, 70]))
    cost = experts_moved(TRN3_NL72X2, sent, links)

    assert cost.duration_ns == pytest.approx(links.exchange(sent).duration_ns, abs=1)
    assert cost.bytes_links == 2 * 10**9
    assert cost.joules == pytest.approx(8 * 2e9 * (ENERGY.link.value + 2 * ENERGY.hbm.value) / 1e12)


def test_what_a_chip_sends_itself_costs_nothing() -> None:
    assert experts_moved(TRN3_NL72X2, np.diag([1e9, 2e9]), TWO_CHIPS) == HandoverCost()
    assert weights_read(TRN3_NL72X2, np.array([0]), gigabytes(0)) == HandoverCost()


def test_costs_one_after_the_other_add_up_and_idle_chips_draw_meanwhile() -> None:
    read = weights_read(TRN3_NL72X2, np.array([0]), gigabytes(28))
    moved = experts_moved(TRN3_NL72X2, np.array([[0, 1e9], [0, 0]]), TWO_CHIPS)
    both = read + moved

    assert both.duration_ns == read.duration_ns + moved.duration_ns
    assert (both.bytes_links, both.bytes_storage) == (10**9, 28 * 10**9)
    assert both.joules == read.joules + moved.joules
    idle = TRN3_NL72X2.chip.idle_watts.value
    assert read.idle_joules(TRN3_NL72X2, chips=4) == pytest.approx(4 * idle * 1.0)


@given(
    chips=st.lists(st.integers(0, 143), min_size=1, max_size=20, unique=True),
    size=st.floats(0, 1e11),
)
def test_a_cost_lies_between_that_of_one_tray_and_of_all_trays_in_turn(
    chips: list[int], size: float
) -> None:
    physical, each = np.array(chips), np.full(len(chips), size)
    cost = weights_read(TRN3_NL72X2, physical, each)
    one = weights_read(TRN3_NL72X2, physical[:1], each[:1])

    assert one.duration_ns <= cost.duration_ns <= len(chips) * max(1, one.duration_ns)
    assert cost.bytes_storage == pytest.approx(len(chips) * size, abs=1)


@pytest.mark.parametrize(
    ("chips", "sizes"), [([144], [1.0]), ([-1], [1.0]), ([0], [-1.0]), ([0, 1], [1.0])]
)
def test_chips_or_bytes_that_cannot_be_are_refused(chips: list[int], sizes: list[float]) -> None:
    with pytest.raises(ConfigError):
        weights_read(TRN3_NL72X2, np.array(chips), np.array(sizes))


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="duration_ns=-1"):
        HandoverCost(duration_ns=-1)
