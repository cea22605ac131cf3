from dataclasses import replace

import numpy as np
import pytest

from emulator.fabric.tiers import (
    Tier,
    tier_bytes_per_s,
    tier_hops,
    tier_latency_ns,
    tiers_of,
    tiers_there,
)
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.figure import Figure
from emulator.specs.systems import system_by_name


def test_four_chips_of_a_tray_then_the_rack_then_the_other_rack() -> None:
    tiers = tiers_of(TRN3_NL72X2, np.arange(144))

    assert tiers[0, [0, 1, 3, 4, 71, 72, 143]].tolist() == [0, 1, 1, 2, 2, 3, 3]
    assert tiers[72, [71, 72, 73, 76]].tolist() == [3, 0, 1, 2]


def test_every_chip_sees_itself_three_neighbours_68_in_the_rack_and_72_across() -> None:
    tiers = tiers_of(TRN3_NL72X2, np.arange(144))

    for chip in range(144):
        counts = [int((tiers[chip] == tier).sum()) for tier in Tier]
        assert counts == [1, 3, 68, 72, 0]
    assert (tiers == tiers.T).all()


def test_each_tier_has_its_lanes_and_hops() -> None:
    linked = [Tier.TRAY, Tier.BACKPLANE, Tier.CROSS_RACK]

    assert [tier_bytes_per_s(TRN3_NL72X2, tier) for tier in linked] == [512e9, 512e9, 128e9]
    assert [tier_hops(TRN3_NL72X2, tier) for tier in Tier] == [0, 1, 3, 4, 0]
    with pytest.raises(ValueError, match="no links of tier SELF"):
        tier_bytes_per_s(TRN3_NL72X2, Tier.SELF)


def test_tiers_follow_the_chips_own_numbers_in_any_order() -> None:
    tiers = tiers_of(TRN3_NL72X2, np.array([73, 3, 2, 4]))

    assert tiers.tolist() == [[0, 3, 3, 3], [3, 0, 1, 2], [3, 1, 0, 2], [3, 2, 2, 0]]


@pytest.mark.parametrize("chip", [-1, 144])
def test_a_chip_that_the_system_does_not_have_is_refused(chip: int) -> None:
    with pytest.raises(ValueError, match="chips 0 to 143"):
        tiers_of(TRN3_NL72X2, np.array([0, chip]))


def test_chips_of_another_unit_are_a_network_away() -> None:
    pair = system_by_name("dgx-h800").cluster(2)

    tiers = tiers_of(pair, np.arange(16))

    assert tiers[0].tolist() == [0] + [Tier.TRAY] * 7 + [Tier.SCALE_OUT] * 8
    assert tier_bytes_per_s(pair, Tier.SCALE_OUT) == 50e9, "a 400 Gb/s card per GPU"


def test_a_way_starts_with_a_transfer_and_a_network_has_its_own_start() -> None:
    trn3 = replace(TRN3_NL72X2, scale_out_start_ns=Figure(value=15_000, unit="ns", source="test"))

    assert tier_latency_ns(trn3, Tier.BACKPLANE) == 1_300 + 3 * 1_000
    assert tier_latency_ns(trn3, Tier.SCALE_OUT) == 15_000
    assert tiers_there(system_by_name("dgx-h800")) == (Tier.TRAY, Tier.SCALE_OUT)
    alone = replace(trn3, scale_out_start_ns=None)
    assert Tier.SCALE_OUT not in tiers_there(alone)
    with pytest.raises(ValueError, match="no links of tier SCALE_OUT"):
        tier_latency_ns(alone, Tier.SCALE_OUT)
