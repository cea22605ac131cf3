"""Shortest paths of the graph: every pair's bytes over all of its shortest paths at once.

Length is latency, then nearness of tiers. Bytes spread evenly over all shortest paths, as packets
on hashed paths do, so both directions are equally busy. The work grows with the links: one
destination at a time.

`GraphPaths` are those of a torus or a mesh, where all chips in service forward by their links' own
hardware: they load every link, also between forwarding chips.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import shortest_path  # type: ignore[import-untyped]

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.graph import FabricGraph
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.wiring import fabric_graph
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

# A tier's part in a link's length: below any difference of latency, which is of whole nanoseconds.
_LENGTHS_PER_NS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """The load of every pair of `ends` on the graph's links.

    `share`, sparse float64[links, ends * ends]: the part of the bytes from s to r that a link
    carries, in column s * ends + r. `latency_ns`: of a pair's longest path, infinite without one, 0
    to oneself.
    """

    graph: FabricGraph
    ends: Int64s  # [ends]: chips
    share: csr_array
    latency_ns: Float64s  # [ends, ends]

    def link_bytes(self, payload_bytes: Float64s) -> Float64s:
        """Load of every link: payload_bytes[..., ends, ends] -> [..., links]."""
        flat = payload_bytes.reshape(-1, len(self.ends) ** 2)
        carried: Float64s = (self.share @ flat.T).T
        return carried.reshape(*payload_bytes.shape[:-2], self.graph.links)


def find_ways(graph: FabricGraph, ends: Int64s) -> Ways:
    """The shortest paths between the chips `ends` of a graph, over all its nodes."""
    length: Float64s = np.rint(graph.latency_ns * _LENGTHS_PER_NS) + graph.tier
    matrix = csr_array((length, (graph.source, graph.target)), shape=(graph.nodes, graph.nodes))
    left = shortest_path(matrix.T.tocsr(), indices=ends)  # [ends, nodes]: from each node to the end
    parts = [_to_one_end(graph, length, left[end], ends) for end in range(len(ends))]
    links, pairs, shares = (
        np.concatenate([np.zeros(0), *(part[of] for part in parts)]) for of in range(3)
    )
    # _to_one_end numbers senders; a pair is sender * ends + receiver
    counts = [len(part[0]) for part in parts]
    receiver = np.repeat(np.arange(len(ends)), counts)
    columns = pairs.astype(np.int64) * len(ends) + receiver
    share = csr_array(
        (shares, (links.astype(np.int64), columns)), shape=(graph.links, len(ends) ** 2)
    )
    latency_ns = np.stack([_latencies(graph, length, left[e], ends) for e in range(len(ends))], 1)
    return Ways(graph=graph, ends=ends, share=share, latency_ns=latency_ns)


def _onward(graph: FabricGraph, length: Float64s, left: Float64s) -> Int64s:
    """Links on shortest paths to the node at distances `left`, float64[nodes], farthest first."""
    reached = np.isfinite(left[graph.source]) & np.isfinite(left[graph.target])
    onward = np.flatnonzero(reached)
    onward = onward[left[graph.source[onward]] == length[onward] + left[graph.target[onward]]]
    order: Int64s = onward[np.argsort(-left[graph.source[onward]], kind="stable")]
    return order


def _levels(graph: FabricGraph, links: Int64s, left: Float64s) -> list[Int64s]:
    far = left[graph.source[links]]
    return np.split(links, np.flatnonzero(np.diff(far)) + 1) if len(links) else []


def _to_one_end(
    graph: FabricGraph, length: Float64s, left: Float64s, senders: Int64s
) -> tuple[Int64s, Int64s, Float64s]:
    """Each link's share of each sender's bytes for one receiver: (links, senders, shares)."""
    onward = _onward(graph, length, left)
    levels = _levels(graph, onward, left)
    ways_on = np.where(left == 0, 1.0, 0.0)  # [nodes]: shortest paths from each to the receiver
    for level in reversed(levels):
        np.add.at(ways_on, graph.source[level], ways_on[graph.target[level]])
    at = np.zeros((graph.nodes, len(senders)))  # what passes each node of each sender's bytes
    at[senders, np.arange(len(senders))] = 1.0
    found: list[tuple[Int64s, Int64s, Float64s]] = []
    for level in levels:
        source, target = graph.source[level], graph.target[level]
        # [links of the level, senders]
        flow = at[source] * (ways_on[target] / ways_on[source])[:, None]
        np.add.at(at, target, flow)
        link, sender = np.nonzero(flow)
        found.append((level[link], sender, flow[link, sender]))
    nothing = np.zeros(0, dtype=np.int64)
    links, pairs, shares = (
        np.concatenate([nothing, *(part[of] for part in found)]) for of in range(3)
    )
    return links, pairs, shares


def _latencies(graph: FabricGraph, length: Float64s, left: Float64s, senders: Int64s) -> Float64s:
    """Latency of each sender's shortest paths to one receiver, [senders]."""
    latency_ns = np.where(left == 0, 0.0, np.inf)  # [nodes]
    for level in reversed(_levels(graph, _onward(graph, length, left), left)):
        over = graph.latency_ns[level] + latency_ns[graph.target[level]]
        longest = np.full(graph.nodes, -np.inf)
        np.maximum.at(longest, graph.source[level], over)
        seen = np.isfinite(longest)
        latency_ns[seen] = longest[seen]
    found: Float64s = latency_ns[senders]
    return found


class GraphPaths:
    """Paths between the chips `physical` of a system, or VACANT; ValueError for other numbers."""

    def __init__(self, system: SystemSpec, physical: Int64s, links: LinkHealth) -> None:
        seated = np.flatnonzero(physical != VACANT)
        ends = physical[seated]
        if ends.size and not (ends.min() >= 0 and ends.max() < system.chips.count):
            raise ValueError(f"{system.name} has chips 0 to {system.chips.count - 1}, not {ends}")
        if links.is_whole:
            self._ways = _whole_ways(system, tuple(ends.tolist()))
        else:
            self._ways = find_ways(fabric_graph(system, links), ends)
        self._seated, self._positions = seated, len(physical)
        self.latency_ns: Float64s = np.full((len(physical), len(physical)), np.inf)
        start_ns = system.chip.dma_start_ns.value
        self.latency_ns[np.ix_(seated, seated)] = self._ways.latency_ns + start_ns
        np.fill_diagonal(self.latency_ns, 0.0)
        self.reachable: Bools = np.isfinite(self.latency_ns)

    def busy_ns(self, payload_bytes: Float64s) -> Float64s:
        """Time of the busiest link at each chip, then of all links: [layers, positions + 1].

        Of payload_bytes[layer, sender, receiver] between connected positions.
        """
        graph = self._ways.graph
        seated = payload_bytes[:, self._seated[:, None], self._seated]
        link_ns = self._ways.link_bytes(seated) * (NS_PER_S / graph.bytes_per_s)  # [layers, links]
        node_ns = np.zeros((graph.nodes, len(link_ns)))
        np.maximum.at(node_ns, graph.source, link_ns.T)
        np.maximum.at(node_ns, graph.target, link_ns.T)
        busy_ns = np.zeros((len(link_ns), self._positions + 1))
        busy_ns[:, self._seated] = node_ns[self._ways.ends].T
        busy_ns[:, -1] = link_ns.max(axis=1, initial=0.0)
        return busy_ns

    def busy_ns_by_sender(self, bytes_each: Float64s) -> tuple[Float64s, Int64s]:
        """Of one of each sender's tokens, which is bytes_each[layer, sender, receiver]: the time of
        every link that carries any, [layers, senders, links], and the positions at its ends,
        [links, 2], -1 of others.
        """
        ways, seated = self._ways, self._seated
        graph, chips = ways.graph, len(ways.ends)
        busy_ns = np.zeros((len(bytes_each), self._positions, graph.links))
        for end, sender in enumerate(seated):
            share = ways.share[:, end * chips : (end + 1) * chips]  # [links, receivers]
            busy_ns[:, sender] = (share @ bytes_each[:, sender, seated].T).T
        busy_ns *= NS_PER_S / graph.bytes_per_s
        used = busy_ns.any(axis=(0, 1))
        position = np.full(graph.nodes, -1, dtype=np.int64)
        position[ways.ends] = seated
        ends = position[np.stack([graph.source, graph.target], axis=1)]
        return np.ascontiguousarray(busy_ns[:, :, used]), ends[used]


@lru_cache(maxsize=16)
def _whole_ways(system: SystemSpec, ends: tuple[int, ...]) -> Ways:
    """Cached: sweeps request the same chips of the same system many times."""
    return find_ways(fabric_graph(system), np.array(ends, dtype=np.int64))
