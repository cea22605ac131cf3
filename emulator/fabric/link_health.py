"""Health of the links: each chip's working lanes, tier by tier.

Cut lanes and lost switch trays take lanes away; a tier keeps its bandwidth while its spare lanes
last. Assumed, the worse case: a chip's backplane lanes are spread evenly over its rack's switch
trays, and cut lanes are none that a lost tray had already.
"""

from dataclasses import dataclass, field

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.tiers import Tier, rack_of, tier_bytes_per_s, tiers_there
from emulator.specs.fault import LinkTier
from emulator.specs.health import TIERS, Health
from emulator.specs.link_lanes import LANES_BY_CHIP
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec

TIER_OF_LINK = {
    LinkTier.TRAY: Tier.TRAY,
    LinkTier.BACKPLANE: Tier.BACKPLANE,
    LinkTier.CROSS_RACK: Tier.CROSS_RACK,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkHealth:
    """`share`, float64[chips of the system, Tier]: the bandwidth left of each chip's tier, 0 to 1.

    The column of SELF is unused. `switch_trays_out`, int64[racks]: lost backplane switches, already
    counted in `share`. `cut_links`: pairs of chips whose direct links are gone.
    """

    share: Float64s
    switch_trays_out: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cut_links: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def whole(cls, system: SystemSpec) -> "LinkHealth":
        """The links of a system without failures."""
        return cls(share=np.ones((system.chips.count, len(Tier))))

    @classmethod
    def of(cls, health: Health, system: SystemSpec, partition: Partition) -> "LinkHealth":
        """The links under `health`; chips outside the partition count as whole.

        Lanes of unpublished number cannot be cut. A switch tray takes its part of the lanes to a
        rack's switches; without their number, none is assumed redundant.
        """
        own = partition.first_chip + np.arange(len(health.lost))  # [chips] of the system
        share = np.ones((system.chips.count, len(Tier)))
        lanes = LANES_BY_CHIP.get(system.chip.name, {})
        for link, tier in TIER_OF_LINK.items():
            to_switches = tier is _switched_tier(system)
            if link in lanes:
                there: Int64s = np.full(len(own), lanes[link].lanes.count)
                if to_switches:
                    there = _lanes_of_switch_trays(health, system, there, rack_of(system, own))
                up = np.maximum(there - health.lanes_down[:, TIERS.index(link)], 0)
                # Of the bandwidth as it is read: one that counts all lanes has none to spare.
                whole = tier_bytes_per_s(system, tier) / lanes[link].lane_bytes_per_s.value
                share[own, tier] = np.minimum(up, whole) / whole
            elif to_switches:
                trays = system.switch_trays_per_rack.count
                share[own, tier] = 1 - health.switch_trays_out[rack_of(system, own)] / max(trays, 1)
        share[own[~health.works]] = 0.0  # a chip that is lent out relays as before
        return cls(share=share, switch_trays_out=health.switch_trays_out)

    @property
    def is_whole(self) -> bool:
        """Whether all links work."""
        return not self.cut_links and bool((self.share == 1.0).all())

    def bytes_per_s(self, system: SystemSpec, tier: Tier) -> Float64s:
        """Bytes per second and direction of every chip's lanes of a tier, float64[chips]."""
        rate: Float64s = self.share[:, tier] * tier_bytes_per_s(system, tier)
        return rate


def _lanes_of_switch_trays(
    health: Health, system: SystemSpec, lanes: Int64s, rack: Int64s
) -> Int64s:
    """Lanes to the working switch trays, int64[chips]; all of them without trays."""
    trays = system.switch_trays_per_rack.count
    if not trays:
        return lanes
    left: Int64s = lanes * (trays - health.switch_trays_out[rack]) // trays
    return left


def _switched_tier(system: SystemSpec) -> Tier:
    return Tier.BACKPLANE if Tier.BACKPLANE in tiers_there(system) else Tier.TRAY
