"""Load and completion of concurrent transfers between the same chips.

A step's tokens, keys and values for another rank, moving experts and checkpoint reads share links;
traffic classes decide their order.
"""

import numpy as np

from emulator.arrays import Float64s, Int64s
from emulator.fabric.link_health import LinkHealth
from emulator.fabric.traffic_classes import TrafficClass, Transfer, completion_ns, traffic_classes
from emulator.specs.system import SystemSpec
from emulator.units import NS_PER_S


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
        """The load of payload_bytes[sender, receiver], float64[chips, chips], on the links.

        A chip's own share is free. Raises ValueError for bytes without a path.
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
        """Completion of each transfer, all starting now, float64[transfers].

        By the classes of the chip's DMA engines; without them links are shared fairly.
        """
        return completion_ns(transfers, self._ns_per_byte, classes=self._classes)
