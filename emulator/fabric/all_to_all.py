"""The all-to-all of expert parallelism: how long chips take to exchange what each has for each.

A chip sends what it has for others one after the other on each tier's lanes, and receives in the
same way; tiers, and the two directions, are separate lanes and run side by side. Switches are taken
not to block (the vendor says full bisection), and traffic across racks to use the direct links
alone. An exchange ends when the last chip has sent and received everything.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.tiers import Tier, tier_bytes_per_s, tier_hops, tiers_between
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One exchange: how long each chip's links move data, and how long all of it takes."""

    link_busy_ns: Float64s  # [chips]: the busiest tier and direction of each
    duration_ns: float


class AllToAll:
    """The first `chips` chips of a system and the links between them."""

    def __init__(self, system: SystemSpec, chips: int) -> None:
        tiers = tiers_between(system, chips)
        used = [Tier(tier) for tier in np.unique(tiers) if tier != Tier.SELF]
        # [tiers, sending chip, receiving chip]: zero where a pair does not use the tier
        self._ns_per_byte = np.zeros((len(used), chips, chips))
        for layer, tier in zip(self._ns_per_byte, used, strict=True):
            layer[tiers == tier] = NS_PER_S / tier_bytes_per_s(system, tier)
        farthest = max((tier_hops(system, tier) for tier in used), default=0)
        self._latency_ns = system.chip.dma_start_ns.value + farthest * system.hop_ns.value

    def exchange(self, payload_bytes: Float64s) -> Exchange:
        """Times the exchange of payload_bytes[sender, receiver]; a chip's own share is free.

        Its latency is a DMA's start-up and the hops to the partition's farthest chip; an exchange
        of nothing takes no time.
        """
        chips = len(payload_bytes)
        if not len(self._ns_per_byte):
            return Exchange(link_busy_ns=np.zeros(chips), duration_ns=0.0)
        moving_ns = payload_bytes * self._ns_per_byte
        egress_ns = moving_ns.sum(axis=2).max(axis=0)  # [tiers, senders] -> [senders]
        ingress_ns = moving_ns.sum(axis=1).max(axis=0)
        busy_ns = np.maximum(egress_ns, ingress_ns)
        longest_ns = float(busy_ns.max())
        latency_ns = self._latency_ns if longest_ns > 0 else 0.0
        return Exchange(link_busy_ns=busy_ns, duration_ns=longest_ns + latency_ns)
