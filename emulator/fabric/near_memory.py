"""Memory accesses of a collective: HBM reads and writes for each byte it moves.

A chip that adds arriving data to memory as part of the DMA's write need not read it again. Where
the DMA engine does so at its full rate an added write costs a plain write; at half the rate, or
with an engine that reads both operands, two accesses (the vendor counts two reads and a write per
reduced byte: AWS Neuron SDK docs, neuron-runtime/explore/intranode-collective-comm.rst). Transfers
that fit go from SBUF to SBUF on Trainium3 and leave HBM alone (SemiAnalysis, AWS Trainium3 Deep
Dive).
"""

from dataclasses import dataclass
from typing import Final

from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMemory:
    """`adding_rate_share`: the DMA rate left to writes that add. `sbuf_to_sbuf`: collectives may
    start and end in SBUF.
    """

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
    """How a chip's memory takes part in reductions."""
    return _BY_CHIP.get(chip.name, _OTHERS)
