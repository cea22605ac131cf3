from dataclasses import replace

import pytest

from emulator.errors import ConfigError
from emulator.specs.catalog.blackwell import B200, GB300
from emulator.specs.catalog.hopper import H100, H800
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.chip import ChipSpec
from emulator.specs.fault import LinkTier
from emulator.specs.figure import Figure
from emulator.specs.link_lanes import TierLanes, lanes_of


def test_a_chip_has_160_lanes_of_which_144_are_active() -> None:
    lanes = lanes_of(TRAINIUM3)

    assert {tier: each.lanes.count for tier, each in lanes.items()} == {
        LinkTier.TRAY: 64,
        LinkTier.BACKPLANE: 80,
        LinkTier.CROSS_RACK: 16,
    }
    active = {
        LinkTier.TRAY: TRAINIUM3.link_tray_bytes_per_s,
        LinkTier.BACKPLANE: TRAINIUM3.link_backplane_bytes_per_s,
        LinkTier.CROSS_RACK: TRAINIUM3.link_cross_rack_bytes_per_s,
    }
    assert [rate.value / lanes[tier].lane_bytes_per_s.value for tier, rate in active.items()] == [
        64,
        64,
        16,
    ]


@pytest.mark.parametrize(("chip", "gb_per_s"), [(H100, 25), (H800, 25), (B200, 50), (GB300, 50)])
def test_nvlinks_together_are_the_chips_bandwidth(chip: ChipSpec, gb_per_s: int) -> None:
    (tier,) = lanes_of(chip).values()

    assert tier.lane_bytes_per_s.value == gb_per_s * 1e9
    assert tier.lanes.value * gb_per_s * 1e9 == chip.link_tray_bytes_per_s.value


def test_a_chip_whose_lanes_are_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="chip=other: expected a chip whose lanes are known"):
        lanes_of(replace(TRAINIUM3, name="other"))


@pytest.mark.parametrize(("lanes", "rate"), [(0, 8e9), (16, 0)])
def test_a_tier_has_lanes_and_they_a_rate(lanes: int, rate: float) -> None:
    with pytest.raises(ConfigError, match="expected 1 or more, with a rate"):
        TierLanes(
            lanes=Figure(value=lanes, unit="lanes", source="assumed: a test's"),
            lane_bytes_per_s=Figure(value=rate, unit="bytes/s", source="assumed: a test's"),
        )
