"""Lanes of a chip: their number on each tier, and their rate.

A tier's bandwidth is that of the lanes that carry traffic at once; the others replace failed ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.catalog.blackwell import B200, B300, GB200, GB300
from emulator.specs.catalog.hopper import H100, H200, H800
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.chip import ChipSpec
from emulator.specs.fault import LinkTier
from emulator.specs.figure import Figure
from emulator.units import GB

_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLanes:
    """A chip's lanes of one tier, spare ones included, and a lane's rate per direction."""

    lanes: Figure
    lane_bytes_per_s: Figure

    def __post_init__(self) -> None:
        if self.lanes.count < 1 or self.lane_bytes_per_s.value <= 0:
            raise ConfigError("lanes", self.lanes.count, "1 or more, with a rate")


ChipLanes = Mapping[LinkTier, TierLanes]


def _tier(lanes: int, gb_per_s: int, source: str) -> TierLanes:
    return TierLanes(
        lanes=Figure(lanes, "lanes", source),
        lane_bytes_per_s=Figure(gb_per_s * GB, "bytes/s", source),
    )


def _pcie6(lanes: int, source: str) -> TierLanes:
    return _tier(lanes, 8, f"{source}; PCIe 6, 64 Gb/s each way")


def _nvlinks(chip: ChipSpec, links: int, gb_per_s: int) -> ChipLanes:
    source = f"NVIDIA, NVLink: {links} links of {gb_per_s} GB/s per direction on {chip.name}"
    return {LinkTier.TRAY: _tier(links, gb_per_s, source)}


LANES_BY_CHIP: Final[Mapping[str, ChipLanes]] = {
    TRAINIUM3.name: {
        LinkTier.TRAY: _pcie6(64, f"{_SEMIANALYSIS}: 64 board lanes"),
        LinkTier.BACKPLANE: _pcie6(
            80, f"{_SEMIANALYSIS}: 80 backplane lanes, 16 of them redundant"
        ),
        LinkTier.CROSS_RACK: _pcie6(16, f"{_SEMIANALYSIS}: 16 lanes to the other rack"),
    },
    H100.name: _nvlinks(H100, 18, 25),
    H800.name: _nvlinks(H800, 8, 25),
    H200.name: _nvlinks(H200, 18, 25),
    B200.name: _nvlinks(B200, 18, 50),
    GB200.name: _nvlinks(GB200, 18, 50),
    B300.name: _nvlinks(B300, 18, 50),
    GB300.name: _nvlinks(GB300, 18, 50),
}


def lanes_of(chip: ChipSpec) -> ChipLanes:
    """The lanes of a chip by tier; raises ConfigError for a chip whose lanes are not known."""
    if chip.name not in LANES_BY_CHIP:
        raise ConfigError(
            "chip", chip.name, f"a chip whose lanes are known: {', '.join(LANES_BY_CHIP)}"
        )
    return LANES_BY_CHIP[chip.name]
