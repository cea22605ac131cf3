from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import ConfigError
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tiers import Tier
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.systems import system_by_name

WHOLE_MACHINE = Partition(chips=144, ep=144)
PULL = Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=0)


def rates(tier: Tier, *faults: Fault, partition: Partition = WHOLE_MACHINE) -> np.ndarray:
    health = Health.whole(TRN3_NL72X2, partition)
    for fault in faults:
        health = health.after(fault, TRN3_NL72X2, partition)
    return LinkHealth.of(health, TRN3_NL72X2, partition).bytes_per_s(TRN3_NL72X2, tier) / 1e9


def cut(chip: int, tier: LinkTier, lanes: int) -> Fault:
    return Fault(kind=FaultKind.CUT_LINK, chip=chip, tier=tier, lanes=lanes)


@pytest.mark.parametrize(
    ("trays_out", "gb_per_s"),  # 80 - 8 lanes a tray, 64 of them active, 8 GB/s each
    enumerate([512, 512, 512, 448, 384, 320, 256, 192, 128, 64, 0]),
)
def test_two_switch_trays_may_be_out_and_each_further_one_costs_eight_lanes(
    trays_out: int, gb_per_s: float
) -> None:
    backplane = rates(Tier.BACKPLANE, *[PULL] * trays_out)

    assert backplane[:72].tolist() == [gb_per_s] * 72
    assert backplane[72:].tolist() == [512] * 72, "the other rack has switch trays of its own"


def test_a_switch_tray_takes_no_lanes_of_the_tray_or_to_the_other_rack() -> None:
    assert rates(Tier.TRAY, *[PULL] * 10).tolist() == [512] * 144
    assert rates(Tier.CROSS_RACK, *[PULL] * 10).tolist() == [128] * 144


def test_sixteen_backplane_lanes_are_redundant_and_no_others() -> None:
    assert rates(Tier.BACKPLANE, cut(5, LinkTier.BACKPLANE, 16))[5] == 512
    assert rates(Tier.BACKPLANE, cut(5, LinkTier.BACKPLANE, 17))[5] == 504
    assert rates(Tier.TRAY, cut(5, LinkTier.TRAY, 1))[[4, 5]].tolist() == [512, 504]
    assert rates(Tier.CROSS_RACK, cut(5, LinkTier.CROSS_RACK, 15))[5] == 8


def test_a_reading_whose_bandwidth_counts_the_lanes_to_spare_has_none() -> None:
    health = Health.whole(TRN3_NL72X2, WHOLE_MACHINE).after(
        cut(5, LinkTier.BACKPLANE, 1), TRN3_NL72X2, WHOLE_MACHINE
    )
    found = {}
    for reading in ("lanes", "headline", "aws_text"):
        system = TRN3_NL72X2.assuming("links", reading)
        links = LinkHealth.of(health, system, WHOLE_MACHINE)
        found[reading] = links.bytes_per_s(system, Tier.BACKPLANE)[4:6] / 1e9

    assert {reading: rate.tolist() for reading, rate in found.items()} == {
        "lanes": [512, 512],
        "headline": [640, 632],
        "aws_text": [320, 320],
    }


def test_cut_lanes_and_pulled_trays_add_up() -> None:
    # 80 - 2 x 8 - 10 = 54 lanes
    assert rates(Tier.BACKPLANE, PULL, PULL, cut(7, LinkTier.BACKPLANE, 10))[7] == 54 * 8
    # fewer than none is none
    assert rates(Tier.BACKPLANE, *[PULL] * 9, cut(7, LinkTier.BACKPLANE, 79))[7] == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind=FaultKind.LOSE_CHIP, chip=3),
        Fault(kind=FaultKind.HANG_CHIP, chip=3),
        Fault(kind=FaultKind.FAIL_STACK, chip=3, stack=0),
    ],
)
def test_a_chip_out_of_service_has_no_links_and_a_slow_one_has_all(fault: Fault) -> None:
    for tier in (Tier.TRAY, Tier.BACKPLANE, Tier.CROSS_RACK):
        left = rates(tier, fault)
        assert left[3] == 0
        assert (np.delete(left, 3) > 0).all()
        slow = Fault(kind=FaultKind.SLOW_CHIP, chip=3, factor=2)
        assert (rates(tier, slow) == rates(tier)).all()


def test_chips_are_counted_from_the_partitions_first_and_its_spares_after_them() -> None:
    partition = Partition(chips=4, ep=4, first_chip=8, spares=1)

    left = rates(Tier.TRAY, cut(4, LinkTier.TRAY, 32), partition=partition)

    assert left[12] == 256
    assert np.delete(left, 12).tolist() == [512] * 143


def test_a_chip_of_unknown_lanes_has_all_of_them_until_it_is_lost() -> None:
    system = system_by_name("trn2-ultraserver")
    partition = Partition(chips=4, ep=4)
    health = Health.whole(system, partition)
    assert LinkHealth.of(health, system, partition).is_whole

    lost = health.after(Fault(kind=FaultKind.LOSE_CHIP, chip=2), system, partition)
    links = LinkHealth.of(lost, system, partition)

    assert links.share.min(axis=1)[:5].tolist() == [1, 1, 0, 1, 1]
    assert not links.is_whole


def test_a_cut_cable_leaves_no_fabric_whole() -> None:
    links = LinkHealth.whole(TRN3_NL72X2)

    assert links.is_whole
    assert not replace(links, cut_links=frozenset({(0, 1)})).is_whole


def test_a_switch_tray_of_an_nvl72_takes_its_part_of_nvlink() -> None:
    system = system_by_name("gb200-nvl72")
    partition = Partition(chips=72, ep=72)
    health = Health.whole(system, partition).after(PULL, system, partition)
    cut = Fault(kind=FaultKind.CUT_LINK, chip=3, tier=LinkTier.TRAY, lanes=6)

    left = LinkHealth.of(health.after(cut, system, partition), system, partition)

    # 18 links of 50 GB/s over nine switch trays: two of them to each
    gb_per_s = left.bytes_per_s(system, Tier.TRAY) / 1e9
    assert gb_per_s[:5].tolist() == pytest.approx([800, 800, 800, 500, 800])


def test_links_that_a_chip_does_not_have_cannot_be_cut() -> None:
    system = system_by_name("gb200-nvl72")
    partition = Partition(chips=72, ep=72)
    cut = Fault(kind=FaultKind.CUT_LINK, chip=3, tier=LinkTier.BACKPLANE)

    with pytest.raises(ConfigError, match="tier=backplane: expected a tier of gb200: tray"):
        Health.whole(system, partition).after(cut, system, partition)
