"""The all-reduce and all-gather of tensor parallelism, over the chips of each rank.

Mesh algorithm: every chip talks to every other of its rank at once. An all-reduce is a
reduce-scatter, then an all-gather; in each of them a chip sends and receives (n - 1) / n of the
bytes. All of it is charged to the slowest tier that joins two chips of the rank, though a chip has
lanes of several: that is pessimistic for ranks of more than one tray. The vendor uses the mesh for
small messages (AWS Neuron SDK docs, neuron-runtime/about/collectives.rst); what it uses for large
ones on Trn3 is unpublished.

Where lanes have failed, the bytes take as long as an exchange of the same bytes over what is left
does, if that is longer; the hops of detours are left out.
"""

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.tiers import Tier, tier_bytes_per_s, tier_hops, tiers_of
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class RankAllReduce:
    """Collectives of ranks of `tp` chips each.

    `physical` are the system's numbers of the partition's chips in order, int64[chips]; a rank has
    `tp` of them in a row. `all_to_all` are the same chips' links with their faults; whole without
    it. Raises ValueError when they are no whole number of ranks.
    """

    def __init__(
        self, system: SystemSpec, *, tp: int, physical: Int64s, all_to_all: AllToAll | None = None
    ) -> None:
        if len(physical) % tp:
            raise ValueError(f"{len(physical)} chips are not whole ranks of {tp}")
        self.tp = tp
        slowest = [
            Tier(int(tiers_of(system, chips).max())) for chips in physical.reshape(-1, tp)
        ]  # the farthest tier has the fewest lanes and the most hops
        start_ns = system.chip.dma_start_ns.value
        ns_per_byte = [
            0.0 if tier is Tier.SELF else NS_PER_S / tier_bytes_per_s(system, tier)
            for tier in slowest
        ]
        latency_ns = [start_ns + tier_hops(system, tier) * system.hop_ns.value for tier in slowest]
        # Of a byte of the whole payload, in one phase: [ranks]
        self._ns_per_byte = np.array(ns_per_byte) * ((tp - 1) / tp)
        if all_to_all is not None and tp > 1:
            left = _exchanged_ns_per_byte(all_to_all, tp)
            self._ns_per_byte = np.maximum(self._ns_per_byte, left)
        self._latency_ns = np.array(latency_ns)  # [ranks]

    def moving_ns(self, payload_bytes: Float64s) -> Float64s:
        """How long one phase keeps each chip's links busy: [ranks] -> [ranks].

        `payload_bytes` is the whole of what is reduced or gathered in each rank.
        """
        moving: Float64s = payload_bytes * self._ns_per_byte
        return moving

    def all_gather_ns(self, payload_bytes: Float64s) -> Float64s:
        """One phase with its latency; nothing to move takes no time: [ranks] -> [ranks]."""
        if self.tp == 1:
            return np.zeros_like(payload_bytes)
        moving = self.moving_ns(payload_bytes)
        return np.where(payload_bytes > 0, moving + self._latency_ns, 0.0)

    def all_reduce_ns(self, payload_bytes: Float64s) -> Float64s:
        """Reduce-scatter and all-gather: [ranks] -> [ranks]."""
        return 2 * self.all_gather_ns(payload_bytes)


def _exchanged_ns_per_byte(all_to_all: AllToAll, tp: int) -> Float64s:
    """How long the busiest chip of each rank takes over one byte of a phase: [ranks].

    Each chip sends every other of its rank 1 / tp of it; to chips that cannot be reached, nothing.
    """
    reachable = all_to_all.reachable()
    rank = np.arange(len(reachable)) // tp
    payload = (reachable & (rank[:, None] == rank)) / tp
    np.fill_diagonal(payload, 0.0)
    busiest: Float64s = all_to_all.exchange(payload).link_busy_ns.reshape(-1, tp).max(axis=1)
    return busiest
