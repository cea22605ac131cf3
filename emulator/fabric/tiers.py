"""The NeuronLink tier that joins two chips, by their numbers.

The board in a tray, the backplane in a rack, links across racks in a system, network cards between
systems, with separate lanes for each.
"""

from enum import IntEnum

import numpy as np

from emulator.arrays import Int64s
from emulator.specs.system import SystemSpec


class Tier(IntEnum):
    """Nearest first; SELF is a chip and itself, without links."""

    SELF = 0
    TRAY = 1
    BACKPLANE = 2
    CROSS_RACK = 3
    SCALE_OUT = 4


def tiers_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The tier of every pair of distinct chips, int64[n] -> int64[n, n].

    Raises ValueError for chips outside the system.
    """
    if physical.size and not (physical.min() >= 0 and physical.max() < system.chips.count):
        raise ValueError(f"{system.name} has chips 0 to {system.chips.count - 1}, not {physical}")
    tray, rack = tray_of(system, physical), rack_of(system, physical)
    unit = physical // (system.chips.count // system.units)
    tiers = np.full((len(physical), len(physical)), Tier.SCALE_OUT, dtype=np.int64)
    tiers[unit[:, None] == unit] = Tier.CROSS_RACK
    tiers[rack[:, None] == rack] = Tier.BACKPLANE
    tiers[tray[:, None] == tray] = Tier.TRAY
    np.fill_diagonal(tiers, Tier.SELF)
    return tiers


def inside_a_domain(system: SystemSpec, groups: Int64s) -> bool:
    """Whether the chips of each of `groups` [groups, chips] are of one scale-up domain."""
    domain = groups // (system.chips.count // system.units)
    return bool((domain == domain[:, :1]).all())


def tray_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The tray of each chip, counted over the racks."""
    return physical // system.chips_per_tray.count


def rack_of(system: SystemSpec, physical: Int64s) -> Int64s:
    """The rack of each chip."""
    return physical // system.chips_per_rack


def tier_bytes_per_s(system: SystemSpec, tier: Tier) -> float:
    """Bytes per second and direction of one chip's lanes of a tier; ValueError without lanes."""
    chip = system.chip
    rates = {
        Tier.TRAY: chip.link_tray_bytes_per_s,
        Tier.BACKPLANE: chip.link_backplane_bytes_per_s,
        Tier.CROSS_RACK: chip.link_cross_rack_bytes_per_s,
        Tier.SCALE_OUT: chip.scale_out_bytes_per_s,
    }
    rate = rates.get(tier)
    if rate is None:
        raise ValueError(f"{chip.name} has no links of tier {tier.name}")
    return rate.value


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


def tier_latency_ns(system: SystemSpec, tier: Tier) -> float:
    """Time from the start of a transfer over a tier to its first byte's arrival.

    A DMA's start-up and the hops, or the network's figure; ValueError for a missing network.
    """
    if tier is Tier.SCALE_OUT:
        if system.scale_out_start_ns is None:
            raise ValueError(f"{system.name} has no links of tier {tier.name}")
        return system.scale_out_start_ns.value
    return system.chip.dma_start_ns.value + tier_hops(system, tier) * system.hop_ns.value


def tiers_there(system: SystemSpec) -> tuple[Tier, ...]:
    """The tiers that the system's chips have links of, nearest first."""
    chip = system.chip
    there = {
        Tier.TRAY: True,
        Tier.BACKPLANE: chip.link_backplane_bytes_per_s is not None,
        Tier.CROSS_RACK: chip.link_cross_rack_bytes_per_s is not None,
        Tier.SCALE_OUT: chip.scale_out_bytes_per_s is not None
        and system.scale_out_start_ns is not None,
    }
    return tuple(tier for tier, has in there.items() if has)
