"""Direct paths over the lanes of a tier: the load and time of each chip's lanes.

With switches, a chip's own lanes are the only bottleneck: bytes go one after the other on each
tier's lanes in each direction, all side by side. Assumed: switches do not block (the vendor says
full bisection), and traffic across racks uses only the direct links. Bytes of a lost tier take
detours, which load every chip on the way.
"""

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import Routes, find_routes
from emulator.fabric.tiers import Tier
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

_NOBODY = np.zeros(0, dtype=np.int64)


class TierPaths:
    """The paths between `chips` positions, of the chips `nodes` of a system: relays come last."""

    def __init__(self, system: SystemSpec, nodes: Int64s, chips: int, links: LinkHealth) -> None:
        self._chips = chips
        routes = find_routes(system, nodes, links)
        self.reachable: Bools = routes.reachable()[:chips, :chips]
        self.latency_ns: Float64s = routes.latency_ns(system)[:chips, :chips]
        direct = routes.direct
        self._tiers = [Tier(tier) for tier in np.unique(direct) if tier != Tier.SELF]
        # One where a pair talks over a tier: [tiers, sending position, receiving position].
        self.uses: Float64s = np.zeros((len(self._tiers), chips, chips))
        for uses, tier in zip(self.uses, self._tiers, strict=True):
            uses[direct[:chips, :chips] == tier] = 1.0
        rates = [links.bytes_per_s(system, tier)[nodes] for tier in self._tiers]
        self.ns_per_byte: Float64s = np.zeros(
            (len(rates), len(nodes))
        )  # of its lanes: [tiers, nodes]
        for row, rate in zip(self.ns_per_byte, rates, strict=True):
            np.divide(NS_PER_S, rate, out=row, where=rate > 0)
        self._detours = _Detours(routes, chips, self._tiers)

    @property
    def legs(self) -> Int64s:
        """Of detours: [legs, (sender, receiver, row of the tier, leg's sender and receiver)]."""
        return self._detours.legs()

    def busy_ns(self, payload_bytes: Float64s) -> Float64s:
        """Time of each chip's busiest tier and direction: [layers, nodes].

        Of payload_bytes[layer, sender, receiver] between positions that reach each other.
        """
        layers = len(payload_bytes)
        if not self._tiers:
            return np.zeros((layers, self.ns_per_byte.shape[1]))
        egress = np.zeros((layers, *self.ns_per_byte.shape))  # [layers, tiers, nodes]
        ingress = np.zeros_like(egress)
        # einsum, no product of matrices: a layer's sums have the same bits alone and among others
        egress[:, :, : self._chips] = np.einsum("lsr,tsr->lts", payload_bytes, self.uses)
        ingress[:, :, : self._chips] = np.einsum("lsr,tsr->ltr", payload_bytes, self.uses)
        self._detours.add(payload_bytes, egress=egress, ingress=ingress)
        busy_ns: Float64s = (np.maximum(egress, ingress) * self.ns_per_byte).max(axis=1)
        return busy_ns


class _Detours:
    def __init__(self, routes: Routes, chips: int, tiers: list[Tier]) -> None:
        sender, receiver = routes.detoured()
        ends = (sender < chips) & (receiver < chips)  # a relay has nothing to say itself
        self._sender, self._receiver = sender[ends], receiver[ends]
        walked = routes.walk(self._sender, self._receiver)
        leg_sender, leg_receiver, pair = (
            np.concatenate([_NOBODY, *(leg[part] for leg in walked)]) for part in range(3)
        )
        row_of_tier = np.zeros(len(Tier), dtype=np.int64)
        row_of_tier[tiers] = np.arange(len(tiers))
        self._pair = pair
        self._leg_tier = row_of_tier[routes.direct[leg_sender, leg_receiver]]
        self._leg_sender, self._leg_receiver = leg_sender, leg_receiver

    def legs(self) -> Int64s:
        """See `TierPaths.legs`."""
        ends = (self._sender[self._pair], self._receiver[self._pair])
        return np.stack([*ends, self._leg_tier, self._leg_sender, self._leg_receiver], axis=1)

    def add(self, payload_bytes: Float64s, *, egress: Float64s, ingress: Float64s) -> None:
        """Add the detoured bytes to egress and ingress[layers, tiers, nodes], in place."""
        if not len(self._pair):
            return
        moved = payload_bytes[:, self._sender, self._receiver][:, self._pair]  # [layers, legs]
        for layer in range(len(moved)):
            np.add.at(egress[layer], (self._leg_tier, self._leg_sender), moved[layer])
            np.add.at(ingress[layer], (self._leg_tier, self._leg_receiver), moved[layer])
