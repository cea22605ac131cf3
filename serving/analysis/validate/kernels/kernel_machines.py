"""The machines of kernel tables, by the name that the tables have for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.specs.chips import chip_by_name
from emulator.timing.laws.silicon import Silicon
from emulator.timing.product_rate import ProductRate
from serving.analysis.validate.kernels.law_fit import Strings


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMachine:
    """A chip of the catalog; `generation`: chips that run the same compiled kernels."""

    chip: str
    generation: str
    fabric: str


def _nvlink(chip: str, generation: str) -> KernelMachine:
    return KernelMachine(chip=chip, generation=generation, fabric="nvlink")


MACHINES: Final = {
    "a100_sxm": _nvlink("a100", "ampere"),
    "h100_sxm": _nvlink("h100", "hopper"),
    "h200_sxm": _nvlink("h200", "hopper"),
    "b200_sxm": _nvlink("b200", "blackwell"),
    "gb200": _nvlink("gb200", "blackwell"),
    "b300_sxm": _nvlink("b300", "blackwell"),
    "gb300": _nvlink("gb300", "blackwell"),
    "l40s": KernelMachine(chip="l40s", generation="ada", fabric="pcie"),
}


def silicon_of(systems: Strings, rates: Sequence[ProductRate]) -> Silicon:
    """Each row's chip with products at its rate; a rate that a chip lacks is its next wider one.

    `systems`: of MACHINES, as here below.
    """
    known: dict[tuple[str, ProductRate], Silicon] = {}
    each = []
    for system, rate in zip(systems.tolist(), rates, strict=True):
        if (system, rate) not in known:
            chip = chip_by_name(MACHINES[system].chip)
            known[system, rate] = Silicon.of(chip, rate)
        each.append(known[system, rate])
    return Silicon.columns(each)


def generations(systems: Strings) -> Strings:
    """Each row's generation."""
    return np.array([MACHINES[system].generation for system in systems.tolist()], dtype=np.str_)


def fabrics(systems: Strings) -> Strings:
    """Each row's fabric."""
    return np.array([MACHINES[system].fabric for system in systems.tolist()], dtype=np.str_)
