"""The all-reduce between the logical cores of one chip, which the LNC setting makes.

Logical cores split heads and expert columns, so each holds a partial sum of every output row. They
add them up over the chip's DMA engines as a mesh: a reduce-scatter, then an all-gather, each of
which moves (n - 1) / n of the bytes in and out of every core. A chip that is one logical core
(LNC=8) has nothing to add up: its physical cores share an address space (how they do it inside is
unpublished, and taken to be free, which favours LNC=8).
"""

import numpy as np
from numpy.typing import NDArray

from emulator.specs.chip import ChipSpec
from emulator.units import NS_PER_S

Float64s = NDArray[np.float64]


class CoreAllReduce:
    """Collectives of the logical cores of `chip` under `lnc`; raises ConfigError for another LNC.

    A logical core has the DMA engines of its physical cores: 33 bytes/ns x 16 engines = 528 GB/s
    each on Trainium3 (AWS Neuron SDK docs, nki-dma-bandwidth-guide.rst), and a transfer starts
    1,300 ns after its semaphore (the same). Assumed: one start for each phase, and a way between
    HBM stacks that is as fast as to the core's own.
    """

    def __init__(self, chip: ChipSpec, lnc: int) -> None:
        self.cores = chip.logical_cores(lnc)
        core_bytes_per_s = chip.dma_bytes_per_s.value / chip.cores.count * lnc
        self._ns_per_byte = NS_PER_S / core_bytes_per_s
        self._start_ns = chip.dma_start_ns.value

    def moving_ns(self, payload_bytes: Float64s) -> Float64s:
        """How long both phases keep each core's DMA engines busy: [...] -> [...]."""
        return 2 * (self.cores - 1) / self.cores * payload_bytes * self._ns_per_byte

    def duration_ns(self, payload_bytes: Float64s) -> Float64s:
        """Both phases with their starts: [...] -> [...]; nothing to add up takes no time."""
        if self.cores == 1:
            return np.zeros_like(payload_bytes)
        return np.where(payload_bytes > 0, self.moving_ns(payload_bytes) + 2 * self._start_ns, 0.0)
