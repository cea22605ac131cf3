"""What is left of the links: each chip's working lanes, tier by tier.

Lanes that are cut and switch trays that are out take lanes away; a tier with lanes to spare keeps
its bandwidth until fewer are left than it uses at once. The backplane lanes of a chip are taken as
spread evenly over the switch trays of its rack, and a cut lane as one that no pulled tray took
already: the worse of the two readings.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.tiers import Tier, rack_of, tier_bytes_per_s
from emulator.specs.fault import LinkTier
from emulator.specs.health import TIERS, Health
from emulator.specs.link_lanes import LANES_BY_CHIP, lanes_of
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

TIER_OF_LINK = {
    LinkTier.TRAY: Tier.TRAY,
    LinkTier.BACKPLANE: Tier.BACKPLANE,
    LinkTier.CROSS_RACK: Tier.CROSS_RACK,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkHealth:
    """`share` is float64[chips of the system, Tier]: the bandwidth left of each chip's tier.

    1 is all of it, 0 none; a chip that is out of service has none of any tier. The column of SELF
    is not used. `switch_trays_out` is int64[racks], of which a rack's backplane has lost so many
    switches; what that takes of the chips' bandwidth is in `share` already. `cut_links` are pairs
    of the system's chips whose own links are gone, where two chips have links of their own.
    """

    share: Float64s
    switch_trays_out: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cut_links: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def whole(cls, system: SystemSpec) -> "LinkHealth":
        """The links of a system in which nothing has failed."""
        return cls(share=np.ones((system.chips.count, len(Tier))))

    @classmethod
    def of(cls, health: Health, system: SystemSpec, partition: Partition) -> "LinkHealth":
        """The links as `health` leaves them; chips outside the partition count as whole.

        Of a chip whose lanes are not known no lanes can be cut; without a switch tray its backplane
        has so much less, as nothing is known to be redundant.
        """
        own = partition.first_chip + np.arange(len(health.lost))  # [chips] of the system
        share = np.ones((system.chips.count, len(Tier)))
        if system.chip.name not in LANES_BY_CHIP:
            trays = system.switch_trays_per_rack.count
            out = health.switch_trays_out[rack_of(system, own)] / max(trays, 1)
            share[own, Tier.BACKPLANE] = 1.0 - out
            share[own[~health.in_service]] = 0.0
            return cls(share=share, switch_trays_out=health.switch_trays_out)
        lanes = lanes_of(system.chip)
        for column, tier in enumerate(TIERS):
            there: Int64s = np.full(len(own), lanes[tier].lanes.count)
            if tier is LinkTier.BACKPLANE:
                there = _lanes_of_switch_trays(health, system, there, rack_of(system, own))
            up = np.clip(there - health.lanes_down[:, column], 0, lanes[tier].active.count)
            share[own, TIER_OF_LINK[tier]] = up / lanes[tier].active.count
        share[own[~health.in_service]] = 0.0
        return cls(share=share, switch_trays_out=health.switch_trays_out)

    @property
    def is_whole(self) -> bool:
        """True when nothing has failed."""
        return not self.cut_links and bool((self.share == 1.0).all())

    def bytes_per_s(self, system: SystemSpec, tier: Tier) -> Float64s:
        """Bytes per second and direction of every chip's lanes of a tier, float64[chips]."""
        rate: Float64s = self.share[:, tier] * tier_bytes_per_s(system, tier)
        return rate


def _lanes_of_switch_trays(
    health: Health, system: SystemSpec, lanes: Int64s, rack: Int64s
) -> Int64s:
    """Backplane lanes that lead to a switch tray that is in, int64[chips]."""
    trays = system.switch_trays_per_rack.count
    left: Int64s = lanes * (trays - health.switch_trays_out[rack]) // trays
    return left
