"""Logical NeuronCores: those of a chip, their physical cores, and their HBM stacks.

LNC is the number of physical cores in a logical one. Neighbouring physical cores share an HBM
stack, the only one that LNC=1 and LNC=2 allocate in; LNC=8 sees the whole chip.

Source: AWS Neuron SDK docs, logical-neuroncore-config.rst and neuron-runtime/explore/
device-memory.rst; AWS Neuron driver, neuron_dhal_v4.c: hbm_index = core / 2.
"""

from dataclasses import dataclass
from typing import Final

from emulator.errors import NeuronError
from emulator.specs.chip import ChipSpec

ANNOUNCED_LNC: Final = (8,)
"""Announced, not released: the vendor's documents still say 1 or 2. Allowed, and marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCore:
    """Logical core `core` of a chip, with its physical cores and HBM stacks."""

    core: int
    physical_cores: tuple[int, ...]
    stacks: tuple[int, ...]
    shares_with: tuple[int, ...]  # other logical cores that allocate in the same stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMap:
    """The logical cores of one chip under one LNC."""

    lnc: int
    cores: tuple[LogicalCore, ...]
    stacks: int
    stack_bytes: int
    microcode_bytes_per_physical_core: int

    @property
    def released(self) -> bool:
        """False when the vendor has announced this LNC and not shipped it."""
        return self.lnc not in ANNOUNCED_LNC

    @property
    def cores_per_region(self) -> int:
        """Logical cores that share bytes: 2 share a stack under LNC=1, else 1."""
        return 1 + len(self.cores[0].shares_with)

    @property
    def region_bytes(self) -> int:
        """HBM that `cores_per_region` logical cores have together."""
        return len(self.cores[0].stacks) * self.stack_bytes

    def global_core(self, *, chip: int, core: int) -> int:
        """A logical core's number in the system, chip after chip."""
        return chip * len(self.cores) + core


def core_map(chip: ChipSpec, lnc: int) -> CoreMap:
    """The logical cores of `chip`; raises NeuronError, as the compiler does, for another LNC."""
    if lnc not in chip.lnc_sizes:
        sizes = ", ".join(map(str, chip.lnc_sizes))
        raise NeuronError(
            code="NCC_EARG001",
            field="lnc",
            value=lnc,
            expected=f"a logical core of {sizes} physical cores, which {chip.name} supports",
        )
    physical, stacks = chip.cores.count, chip.hbm_stacks.count
    made_of = [tuple(range(first, first + lnc)) for first in range(0, physical, lnc)]
    seen = [tuple(sorted({core * stacks // physical for core in cores})) for cores in made_of]
    return CoreMap(
        lnc=lnc,
        cores=tuple(
            LogicalCore(
                core=core,
                physical_cores=made_of[core],
                stacks=seen[core],
                shares_with=tuple(
                    other
                    for other, stacks_seen in enumerate(seen)
                    if other != core and stacks_seen == seen[core]
                ),
            )
            for core in range(len(made_of))
        ),
        stacks=stacks,
        stack_bytes=chip.hbm_stack_bytes.count,
        microcode_bytes_per_physical_core=chip.microcode_bytes_per_core.count,
    )
