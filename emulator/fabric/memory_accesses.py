"""HBM reads and writes of a collective on each chip, by algorithm.

Counted in reads and writes of one byte per byte of the whole result, over all ranks of a chip. The
counts follow the AWS Neuron SDK docs, neuron-runtime/explore/intranode-collective-comm.rst: a ring
copies with one read and one write (1R1W) per rank and reduces with 2R1W; a kangaring copies 1R2W
and reduces 3R1W for two ranks at once.
"""

import numpy as np

from emulator.arrays import Float64s
from emulator.fabric.near_memory import near_memory
from emulator.fabric.schedules import Algorithm
from emulator.specs.chip import ChipSpec
from emulator.units import NS_PER_S


class MemoryAccesses:
    """The memory of `chips` chips with `per_chip` ranks each."""

    def __init__(self, chip: ChipSpec, chips: int, per_chip: int) -> None:
        memory = near_memory(chip)
        self._adding = memory.adding_write
        self._sbuf_bytes = chip.sbuf_bytes.value if memory.sbuf_to_sbuf else 0.0
        self._access_ns = NS_PER_S / chip.hbm_bytes_per_s.value
        self._move_ns = NS_PER_S / chip.dma_bytes_per_s.value
        self._per_chip = per_chip
        self._between_chips = (chips - 1) / chips
        self._between_ranks = (chips * per_chip - 1) / (chips * per_chip)

    def gather(self, algorithm: Algorithm) -> float:
        """Of an all-gather."""
        match algorithm:
            case Algorithm.RING:
                return 2 * self._per_chip * self._between_ranks
            case Algorithm.KANGARING:
                return 3 * self._per_chip / 2 * self._between_ranks
        # each chip's part is read for every other chip; what arrived is copied to the other ranks
        return 2 * self._between_chips + 2 * (self._per_chip - 1)

    def reduce(self, algorithm: Algorithm) -> float:
        """Of a reduce-scatter."""
        add = self._adding
        match algorithm:
            case Algorithm.RING:
                return (1 + add) * self._per_chip * self._between_ranks
            case Algorithm.KANGARING:
                return (2 + add) * self._per_chip / 2 * self._between_ranks
            case Algorithm.MESH:
                # the ranks' parts are read and sent as one sum, which is added to what is there
                return (self._per_chip + add) * self._between_chips
        on_chip = self._per_chip + 1 if self._per_chip > 1 else 0
        return on_chip + (1 + add) * self._between_chips

    def single_step(self) -> float:
        """Of an all-reduce in which each chip sends its whole sum to every other."""
        others = self._between_chips / (1 - self._between_chips)
        on_chip = 2 * (self._per_chip - 1) + (self._per_chip + 1 if self._per_chip > 1 else 0)
        return (1 + self._adding) * others + on_chip

    def copy(self) -> float:
        """Of what is read at one rank and written at another, of each rank's own bytes."""
        return 2 * self._per_chip

    def time_ns(self, accesses: float, size_bytes: Float64s) -> Float64s:
        """Memory time of a chip; data that fits into SBUF twice is moved by the DMA alone."""
        in_hbm = accesses * self._access_ns * size_bytes
        in_sbuf = accesses / 2 * self._move_ns * size_bytes
        fits = 2 * self._per_chip * size_bytes <= self._sbuf_bytes
        return np.where(fits, in_sbuf, in_hbm)
