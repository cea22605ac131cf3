"""The all-reduce between the logical cores of one chip, by its LNC setting.

Logical cores split heads and expert columns, so each holds a partial sum of every output row. They
sum over the DMA engines as a mesh: a reduce-scatter, then an all-gather, each moving (n - 1) / n of
the bytes in and out of every core. LNC=8 has nothing to sum: its physical cores share an address
space (unpublished, and assumed free, which favours LNC=8).
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.chip import ChipSpec
from emulator.units import NS_PER_S


class CoreAllReduce:
    """Collectives of the logical cores of `chip` under `lnc`; raises ConfigError for another LNC.

    A logical core has its physical cores' DMA engines: 33 bytes/ns x 16 engines = 528 GB/s each on
    Trainium3 (AWS Neuron SDK docs, nki-dma-bandwidth-guide.rst); a transfer starts 1,300 ns after
    its semaphore (the same). Assumed: one start per phase, and equal speed between and within HBM
    stacks.
    """

    def __init__(self, chip: ChipSpec, lnc: int) -> None:
        self.cores = chip.logical_cores(lnc)
        core_bytes_per_s = chip.dma_bytes_per_s.value / chip.cores.count * lnc
        self._ns_per_byte = NS_PER_S / core_bytes_per_s
        self.start_ns = chip.dma_start_ns.value

    def into_core_ns(self, core_bytes: Float64s) -> Float64s:
        """Time of bytes into each core, from the others, without a start: [...] -> [...]."""
        return core_bytes * self._ns_per_byte

    def moving_ns(self, payload_bytes: Float64s) -> Float64s:
        """Busy time of each core's DMA engines in both phases: [...] -> [...]."""
        return 2 * (self.cores - 1) / self.cores * payload_bytes * self._ns_per_byte

    def duration_ns(self, payload_bytes: Float64s) -> Float64s:
        """Both phases with their starts: [...] -> [...]; 0 without bytes."""
        if self.cores == 1:
            return np.zeros_like(payload_bytes)
        return np.where(payload_bytes > 0, self.moving_ns(payload_bytes) + 2 * self.start_ns, 0.0)
