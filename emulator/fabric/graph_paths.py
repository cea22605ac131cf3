"""Paths on a torus or a mesh: the load of every link, also between forwarding chips.

All chips in service forward, by their links' own hardware.
"""

from functools import lru_cache

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.shortest_paths import Ways, find_ways
from emulator.fabric.wiring import fabric_graph
from emulator.specs.seating import VACANT
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S


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


@lru_cache(maxsize=16)
def _whole_ways(system: SystemSpec, ends: tuple[int, ...]) -> Ways:
    """Cached: sweeps request the same chips of the same system many times."""
    return find_ways(fabric_graph(system), np.array(ends, dtype=np.int64))
