"""Which NeuronLink lanes join two chips: a tier of the fabric, told from their numbers.

Chips of one tray talk over the board, chips of one rack over the backplane, others across racks. A
chip has separate lanes for each tier.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from emulator.specs.system import SystemSpec

Int64s = NDArray[np.int64]


class Tier(IntEnum):
    """Nearest first; SELF is a chip and itself, which uses no link."""

    SELF = 0
    TRAY = 1
    BACKPLANE = 2
    CROSS_RACK = 3


def tiers_between(system: SystemSpec, chips: int) -> Int64s:
    """The tier of every pair of the first `chips` chips of `system`, int64[chips, chips]."""
    return tiers_of(system, np.arange(chips, dtype=np.int64))


def tiers_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The tier of every pair of the chips of `system` with the numbers `physical`, all different.

    int64[n] -> int64[n, n]. Raises ValueError for a number that the system does not have.
    """
    if physical.size and not (physical.min() >= 0 and physical.max() < system.chips.count):
        raise ValueError(f"{system.name} has chips 0 to {system.chips.count - 1}, not {physical}")
    tray, rack = tray_of(system, physical), rack_of(system, physical)
    tiers = np.full((len(physical), len(physical)), Tier.CROSS_RACK, dtype=np.int64)
    tiers[rack[:, None] == rack] = Tier.BACKPLANE
    tiers[tray[:, None] == tray] = Tier.TRAY
    np.fill_diagonal(tiers, Tier.SELF)
    return tiers


def tray_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The tray of each chip, counted over the racks."""
    return physical // system.chips_per_tray.count


def rack_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The rack of each chip."""
    return physical // system.chips_per_rack


def tier_bytes_per_s(system: SystemSpec, tier: Tier) -> float:
    """Bytes per second and direction of one chip's lanes of a tier; SELF raises ValueError."""
    match tier:
        case Tier.TRAY:
            return system.chip.link_tray_bytes_per_s.value
        case Tier.BACKPLANE:
            return system.chip.link_backplane_bytes_per_s.value
        case Tier.CROSS_RACK:
            return system.chip.link_cross_rack_bytes_per_s.value
    raise ValueError("a chip has no link to itself")


def tier_hops(system: SystemSpec, tier: Tier) -> int:
    """Switches between two chips of a tier; SELF has none."""
    match tier:
        case Tier.TRAY:
            return system.tray_hops.count
        case Tier.BACKPLANE:
            return system.backplane_hops.count
        case Tier.CROSS_RACK:
            return system.cross_rack_hops.count
    return 0
