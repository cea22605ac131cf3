"""The fabric as a graph: chips, switches, networks, and their directed links.

A link's rate and latency are of one direction. Lanes or cables between the same nodes are one link.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.tiers import Tier


class NodeKind(StrEnum):
    """CHIP computes and forwards. SWITCH joins links of one tier. NETWORK: all of scale-out."""

    CHIP = "chip"
    SWITCH = "switch"
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricGraph:
    """Nodes and directed links; the first `chips` nodes are the system's chips.

    Raises ValueError for links to no node or to themselves, without bandwidth, with negative
    latency, or twice between the same nodes.
    """

    chips: int
    names: tuple[str, ...]  # one per node
    kinds: tuple[NodeKind, ...]  # one per node
    source: Int64s  # [links]: a node
    target: Int64s  # [links]: a node
    bytes_per_s: Float64s  # [links]
    latency_ns: Float64s  # [links]: what the first byte spends on it and on the node it leaves
    tier: Int64s  # [links]: a Tier
    lanes: Float64s  # [links]: cables or lanes that carry traffic at once

    def __post_init__(self) -> None:
        nodes, links = len(self.names), len(self.source)
        if len(self.kinds) != nodes or self.kinds[: self.chips] != (NodeKind.CHIP,) * self.chips:
            raise ValueError(f"{nodes} nodes have a kind each, {self.chips} chips first")
        arrays = (self.target, self.bytes_per_s, self.latency_ns, self.tier, self.lanes)
        if any(array.shape != (links,) for array in arrays):
            raise ValueError(f"every array of links is [{links}]")
        ends = np.stack([self.source, self.target])
        if links and not (ends.min() >= 0 and ends.max() < nodes):
            raise ValueError(f"links join nodes 0 to {nodes - 1}")
        if (self.source == self.target).any():
            raise ValueError("a link joins two nodes")
        if (self.bytes_per_s <= 0).any() or (self.latency_ns < 0).any():
            raise ValueError("a link has bandwidth, and no latency below 0")
        if np.unique(ends, axis=1).shape[1] != links:
            raise ValueError("two nodes have one link each way at most")

    @property
    def nodes(self) -> int:
        """Chips, switches and networks."""
        return len(self.names)

    @property
    def links(self) -> int:
        """Directed links."""
        return len(self.source)


class GraphDraft:
    """A mutable graph: add nodes and links, then freeze."""

    def __init__(self, chips: int) -> None:
        self._chips = chips
        self._names = [f"chip {chip}" for chip in range(chips)]
        self._kinds = [NodeKind.CHIP] * chips
        self._links: list[tuple[Int64s, ...]] = []
        self._rates: list[tuple[Float64s, ...]] = []

    def add_node(self, name: str, kind: NodeKind) -> int:
        """Add a node; returns its number."""
        self._names.append(name)
        self._kinds.append(kind)
        return len(self._names) - 1

    def add_links(
        self,
        source: Int64s | int,
        target: Int64s | int,
        *,
        bytes_per_s: Float64s | float,
        latency_ns: float,
        tier: Tier,
        lanes: Float64s | float = 1.0,
    ) -> None:
        """Add one link per entry of the broadcast arguments, except those without bandwidth."""
        source, target, rate, lane = np.broadcast_arrays(source, target, bytes_per_s, lanes)
        there = np.atleast_1d(rate > 0)
        source, target = np.atleast_1d(source)[there], np.atleast_1d(target)[there]
        self._links.append((source, target, np.full(len(source), int(tier))))
        latency = np.full(len(source), float(latency_ns))
        self._rates.append((np.atleast_1d(rate)[there], latency, np.atleast_1d(lane)[there]))

    def frozen(self) -> FabricGraph:
        """The graph; links between the same two nodes become one with all their lanes."""
        nowhere = (np.zeros(0, dtype=np.int64),) * 3
        source, target, tier = (
            np.concatenate(part) for part in zip(nowhere, *self._links, strict=True)
        )
        no_rates = (np.zeros(0),) * 3
        rate, latency_ns, lanes = (
            np.concatenate(part) for part in zip(no_rates, *self._rates, strict=True)
        )
        pairs = source * len(self._names) + target
        _, first, link = np.unique(pairs, return_index=True, return_inverse=True)
        return FabricGraph(
            chips=self._chips,
            names=tuple(self._names),
            kinds=tuple(self._kinds),
            source=source[first],
            target=target[first],
            bytes_per_s=np.bincount(link, rate, len(first)).astype(np.float64),
            latency_ns=latency_ns[first],
            tier=tier[first],
            lanes=np.bincount(link, lanes, len(first)).astype(np.float64),
        )
