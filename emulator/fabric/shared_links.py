"""Several transfers between the same chips at once: what each loads, and when each is done.

A step's exchange of tokens, keys and values on their way to another rank, experts that move and a
checkpoint that is read share links; which of them waits is a matter of their traffic classes.
"""

import numpy as np
from numpy.typing import NDArray

from emulator.fabric.link_health import LinkHealth
from emulator.fabric.traffic_classes import (
    TrafficClass,
    Transfer,
    completion_ns,
    traffic_classes,
)
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


class SharedLinks:
    """The links of the chips `physical` of a system, int64[chips], whole without `links`."""

    def __init__(
        self, system: SystemSpec, physical: Int64s, links: LinkHealth | None = None
    ) -> None:
        # Imported here, as what it stands on takes longer to load than all the rest of this room.
        from emulator.fabric.shortest_paths import find_ways  # noqa: PLC0415
        from emulator.fabric.wiring import fabric_graph  # noqa: PLC0415

        self._ways = find_ways(fabric_graph(system, links), physical)
        self._ns_per_byte = NS_PER_S / self._ways.graph.bytes_per_s  # [links]
        self._start_ns = system.chip.dma_start_ns.value
        self._classes = traffic_classes(system.chip)

    def transfer(self, traffic: TrafficClass, payload_bytes: Float64s) -> Transfer:
        """What payload_bytes[sender, receiver], float64[chips, chips], is to the links.

        A chip's own share is free. Raises ValueError for bytes between chips that cannot reach each
        other.
        """
        latency_ns = float(self._ways.latency_ns[payload_bytes > 0].max(initial=0.0))
        if np.isinf(latency_ns):
            raise ValueError("no links lead to some of the chips that have bytes to receive")
        return Transfer(
            traffic=traffic,
            link_bytes=self._ways.link_bytes(payload_bytes),
            latency_ns=self._start_ns + latency_ns,
        )

    def completion_ns(self, transfers: list[Transfer]) -> Float64s:
        """When each transfer is done that starts now with the others, float64[transfers].

        By the classes that the chip's DMA engines have; without them the links are shared fairly.
        """
        return completion_ns(transfers, self._ns_per_byte, classes=self._classes)
