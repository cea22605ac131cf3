"""The all-to-all of expert parallelism: how long chips take to exchange what each has for each.

A chip sends what it has for others one after the other on each tier's lanes, and receives in the
same way; tiers, and the two directions, are separate lanes and run side by side. Switches are taken
not to block (the vendor says full bisection), and traffic across racks to use the direct links
alone. An exchange ends when the last chip has sent and received everything. Where lanes have failed
a chip's tier is slower; a tier that is gone is gone around, and those bytes load every chip that
they pass.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import Routes, find_routes
from emulator.fabric.tiers import Tier
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One exchange: how long each chip's links move data, and how long all of it takes."""

    link_busy_ns: Float64s  # [chips]: the busiest tier and direction of each
    duration_ns: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerExchanges:
    """The exchanges of several layers, one after the other, each like `Exchange`."""

    link_busy_ns: Float64s  # [layers, chips]
    duration_ns: Float64s  # [layers]


class AllToAll:
    """The chips of a partition and the links between them, as whole as `links` says.

    Position p is chip `physical[p]` of the system, int64[chips], VACANT where no chip sits; without
    it, chip `first_chip + p`. `relays` are further chips of the system, which only pass on what
    cannot go directly. Everything is whole when `links` is not given.

    Raises ValueError for a chip that the system does not have.
    """

    def __init__(
        self,
        system: SystemSpec,
        chips: int,
        *,
        first_chip: int = 0,
        physical: Int64s | None = None,
        relays: Int64s = _NOBODY,
        links: LinkHealth | None = None,
    ) -> None:
        if physical is None:
            physical = first_chip + np.arange(chips, dtype=np.int64)
        if physical.shape != (chips,):
            raise ValueError(f"physical is int64[{chips}], not {physical.shape}")
        links = links or LinkHealth.whole(system)
        nodes = np.concatenate([physical, relays])
        self._chips = chips
        self._routes = find_routes(system, nodes, links)
        self._reachable = self._routes.reachable()[:chips, :chips]
        self._unreachable = tuple(np.nonzero(~self._reachable))
        direct = self._routes.direct
        self._tiers = [Tier(tier) for tier in np.unique(direct) if tier != Tier.SELF]
        # [tiers, sending position, receiving position]: one where a pair talks over the tier
        self._uses = np.array([direct[:chips, :chips] == tier for tier in self._tiers], np.float64)
        rates = [links.bytes_per_s(system, tier)[nodes] for tier in self._tiers]
        self._ns_per_byte = np.zeros((len(rates), len(nodes)))  # [tiers, nodes]
        for row, rate in zip(self._ns_per_byte, rates, strict=True):
            np.divide(NS_PER_S, rate, out=row, where=rate > 0)
        self._detours = _Detours(self._routes, chips, self._tiers)
        latency_ns = self._routes.latency_ns(system)[:chips, :chips][self._reachable]
        self._latency_ns = float(latency_ns.max(initial=0.0))

    def reachable(self) -> Bools:
        """Which positions can exchange bytes, bool[chips, chips]; each reaches itself."""
        return self._reachable.copy()

    def exchange(self, payload_bytes: Float64s) -> Exchange:
        """Times the exchange of payload_bytes[sender, receiver]; a chip's own share is free.

        Its latency is that of the farthest two chips of the partition: a DMA's start-up and the
        hops, for every leg of their way; an exchange of nothing takes no time. Raises ValueError
        for bytes between chips that cannot reach each other.
        """
        layers = self.exchange_layers(payload_bytes[None])
        return Exchange(
            link_busy_ns=layers.link_busy_ns[0], duration_ns=float(layers.duration_ns[0])
        )

    def exchange_layers(self, payload_bytes: Float64s) -> LayerExchanges:
        """Times one exchange for each layer of payload_bytes[layer, sender, receiver].

        Every layer's is what `exchange` says of it alone; the same errors.
        """
        layers = len(payload_bytes)
        if not self._tiers:
            idle_ns = np.zeros((layers, self._chips))
            return LayerExchanges(link_busy_ns=idle_ns, duration_ns=np.zeros(layers))
        self._check_reachable(payload_bytes)
        egress = np.zeros((layers, *self._ns_per_byte.shape))  # [layers, tiers, nodes]
        ingress = np.zeros_like(egress)
        # einsum, no product of matrices: a layer's sums have the same bits alone and among others
        egress[:, :, : self._chips] = np.einsum("lsr,tsr->lts", payload_bytes, self._uses)
        ingress[:, :, : self._chips] = np.einsum("lsr,tsr->ltr", payload_bytes, self._uses)
        self._detours.add(payload_bytes, egress=egress, ingress=ingress)
        busy_ns = (np.maximum(egress, ingress) * self._ns_per_byte).max(axis=1)  # [layers, nodes]
        longest_ns = busy_ns.max(axis=1)
        return LayerExchanges(
            link_busy_ns=busy_ns[:, : self._chips],
            duration_ns=np.where(longest_ns > 0, longest_ns + self._latency_ns, 0.0),
        )

    def _check_reachable(self, payload_bytes: Float64s) -> None:
        sender, receiver = self._unreachable
        stuck = payload_bytes[:, sender, receiver].any(axis=0)  # [unreachable pairs]
        if stuck.any():
            pair = int(stuck.argmax())
            raise ValueError(
                f"no links lead from position {sender[pair]} to {receiver[pair]}, which has bytes "
                "to receive"
            )


class _Detours:
    """The legs of all pairs that do not talk directly: what each pair's bytes load on their way."""

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

    def add(self, payload_bytes: Float64s, *, egress: Float64s, ingress: Float64s) -> None:
        """Adds the detoured bytes to egress and ingress[layers, tiers, nodes], in place."""
        if not len(self._pair):
            return
        moved = payload_bytes[:, self._sender, self._receiver][:, self._pair]  # [layers, legs]
        for layer in range(len(moved)):
            np.add.at(egress[layer], (self._leg_tier, self._leg_sender), moved[layer])
            np.add.at(ingress[layer], (self._leg_tier, self._leg_receiver), moved[layer])
