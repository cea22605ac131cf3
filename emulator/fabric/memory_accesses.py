"""HBM reads and writes of a collective on each chip, by algorithm.

Per byte of the whole result, over all ranks of a chip, by the AWS Neuron SDK docs,
neuron-runtime/explore/intranode-collective-comm.rst: a ring copies with one read and one write
(1R1W) per rank and reduces with 2R1W; a kangaring copies 1R2W and reduces 3R1W for two ranks at
once.

An adding DMA write costs a plain write at the engine's full rate; at half the rate, or with an
engine that reads both operands, two accesses. Transfers that fit go from SBUF to SBUF on Trainium3,
without HBM (SemiAnalysis, AWS Trainium3 Deep Dive).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.fabric.schedules import Algorithm
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMemory:
    """`adding_rate_share`: DMA rate of adding writes. `sbuf_to_sbuf`: collectives may skip HBM."""

    adding_rate_share: Figure
    sbuf_to_sbuf: bool = False

    @property
    def adding_write(self) -> float:
        """Memory accesses of a write that adds, where a plain one is 1."""
        return 1 / self.adding_rate_share.value


_DMA: Final = "AWS Neuron SDK docs, nki/guides/architecture/trainium3_arch.rst"

_BY_CHIP: Final = {
    "trainium3": NearMemory(
        adding_rate_share=Figure(1.0, "of the DMA rate", f"{_DMA}: read-add-write at full rate"),
        sbuf_to_sbuf=True,
    ),
    "trainium2": NearMemory(
        adding_rate_share=Figure(0.5, "of the DMA rate", f"{_DMA}: half the rate before Trainium3")
    ),
}

_OTHERS: Final = NearMemory(
    adding_rate_share=Figure(
        0.5,
        "of the write rate",
        "arithmetic: an engine reads both operands and writes one, 2R1W for 1R1W's plain "
        "copy; so 2 accesses where a plain write is 1",
    )
)


def near_memory(chip: ChipSpec) -> NearMemory:
    """The memory's part in a chip's reductions."""
    return _BY_CHIP.get(chip.name, _OTHERS)


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
        """Accesses of an all-gather."""
        match algorithm:
            case Algorithm.RING:
                return 2 * self._per_chip * self._between_ranks
            case Algorithm.KANGARING:
                return 3 * self._per_chip / 2 * self._between_ranks
        # each chip's part is read for every other chip; what arrived is copied to the other ranks
        return 2 * self._between_chips + 2 * (self._per_chip - 1)

    def reduce(self, algorithm: Algorithm) -> float:
        """Accesses of a reduce-scatter."""
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
        """Accesses of an all-reduce in which each chip sends its whole sum to every other."""
        others = self._between_chips / (1 - self._between_chips)
        on_chip = 2 * (self._per_chip - 1) + (self._per_chip + 1 if self._per_chip > 1 else 0)
        return (1 + self._adding) * others + on_chip

    def copy(self) -> float:
        """Accesses of a copy between ranks, of each rank's own bytes."""
        return 2 * self._per_chip

    def time_ns(self, accesses: float, size_bytes: Float64s) -> Float64s:
        """Memory time of a chip; data that fits into SBUF twice is moved by the DMA alone."""
        in_hbm = accesses * self._access_ns * size_bytes
        in_sbuf = accesses / 2 * self._move_ns * size_bytes
        fits = 2 * self._per_chip * size_bytes <= self._sbuf_bytes
        return np.where(fits, in_sbuf, in_hbm)
