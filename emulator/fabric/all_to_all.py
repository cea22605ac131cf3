"""Duration of expert parallelism's all-to-all exchanges between chips.

With switches, the lanes of a chip's tiers count; on a torus or a mesh, every link on the way. All
bytes move at once, and an exchange ends with the last chip. Failed lanes slow or detour links.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.tier_paths import TierPaths
from emulator.specs.system import SystemSpec, Topology

if TYPE_CHECKING:
    from emulator.fabric.shortest_paths import GraphPaths

_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeTime:
    """One exchange: link time of each chip, and the whole duration."""

    link_busy_ns: Float64s  # [chips]: the busiest link and direction of each
    duration_ns: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerExchanges:
    """Exchanges of several layers in sequence, each like `ExchangeTime`."""

    link_busy_ns: Float64s  # [layers, chips]
    duration_ns: Float64s  # [layers]


class AllToAll:
    """The chips of a partition and their links, in the state of `links`; whole by default.

    Position p is chip `physical[p]` of the system, int64[chips], or VACANT; by default `first_chip
    + p`. `relays` are further chips, which forward detoured bytes; on a torus or a mesh every chip
    does. Raises ValueError for a chip outside the system.
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
        self.is_whole = links.is_whole
        self._chips = chips
        self._paths = _paths(system, physical, relays, links)
        self._unreachable = tuple(np.nonzero(~self._paths.reachable))
        latency_ns = self._paths.latency_ns[self._paths.reachable]
        self._latency_ns = float(latency_ns.max(initial=0.0))

    def reachable(self) -> Bools:
        """Positions that can exchange bytes, bool[chips, chips]; each reaches itself."""
        return self._paths.reachable.copy()

    def latency_ns(self) -> Float64s:
        """Time to the first byte, float64[chips, chips]: a DMA's start-up and hops for every leg.

        0 to itself, infinite without a path.
        """
        return self._paths.latency_ns.copy()

    @property
    def tier_paths(self) -> TierPaths | None:
        """The lanes of tiers, where they are all that can be short."""
        return self._paths if isinstance(self._paths, TierPaths) else None

    @property
    def graph_paths(self) -> "GraphPaths | None":
        """The links of a torus or a mesh."""
        return None if isinstance(self._paths, TierPaths) else self._paths

    @property
    def longest_latency_ns(self) -> float:
        """Between the two positions that are farthest from each other."""
        return self._latency_ns

    def exchange(self, payload_bytes: Float64s) -> ExchangeTime:
        """Time the exchange of payload_bytes[sender, receiver]; a chip's own share is free.

        Latency is that of the farthest two chips; 0 without bytes. Raises ValueError for bytes
        without a path.
        """
        layers = self.exchange_layers(payload_bytes[None])
        return ExchangeTime(
            link_busy_ns=layers.link_busy_ns[0], duration_ns=float(layers.duration_ns[0])
        )

    def exchange_layers(self, payload_bytes: Float64s) -> LayerExchanges:
        """Time one `exchange` per layer of payload_bytes[layer, sender, receiver]."""
        self._check_reachable(payload_bytes)
        busy_ns = self._paths.busy_ns(payload_bytes)  # [layers, chips and what passes bytes on]
        longest_ns = busy_ns.max(axis=1, initial=0.0)
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


def _paths(
    system: SystemSpec, physical: Int64s, relays: Int64s, links: LinkHealth
) -> "TierPaths | GraphPaths":
    if system.topology is Topology.SWITCHED:
        return TierPaths(system, np.concatenate([physical, relays]), len(physical), links)
    # Imported here, as what it stands on takes longer to load than all the rest of this room.
    from emulator.fabric.shortest_paths import GraphPaths  # noqa: PLC0415

    return GraphPaths(system, physical, links)
