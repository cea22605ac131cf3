"""Joules of work on a chip: of a product, of a bit from HBM, of a bit over a link.

Unpublished for the catalog's chips. Assumed for one process, from public measurements, and scaled
to others by the foundry's figures. A chip's budget limits the sum over its engines.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure, NamedFigures, figures_of

PICO: Final = 1e-12

_HOROWITZ: Final = "Horowitz, Computing's energy problem, ISSCC 2014 (45 nm)"

# Power at the same speed against the 5 nm process, as the foundry states it.
PROCESS_FACTORS: Final = MappingProxyType(
    {
        "7 nm": (1 / 0.70, "TSMC: N5 takes 30 % less power than N7"),
        "5 nm": (1.0, "TSMC N5 and Nvidia's 4N, which derives from it"),
        "4 nm": (1 / 1.22, "TSMC: N4P is 22 % more power-efficient than N5; Nvidia's 4NP"),
        "3 nm": (0.66, "TSMC: N3E takes 34 % less power than N5"),
    }
)
_PROCESS_OF_CHIP: Final = MappingProxyType(
    {
        "inferentia1": "7 nm",  # assumed: unpublished; the generation before Trainium1
        "inferentia2": "7 nm",  # assumed: unpublished; Trainium1's core
        "trainium1": "7 nm",  # AWS, re:Invent 2020
        "trainium2": "5 nm",  # SemiAnalysis, Amazon's AI Self Sufficiency
        "trainium3": "3 nm",  # AWS, re:Invent 2025
        "h100": "5 nm",
        "h800": "5 nm",
        "h200": "5 nm",
        "b200": "4 nm",
        "gb200": "4 nm",
        "b300": "4 nm",
        "gb300": "4 nm",
        "mi300x": "5 nm",  # compute dies
        "mi325x": "5 nm",
        "mi355x": "3 nm",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEnergy:
    """Energy of one operation on a chip, beside its idle draw.

    Tensor figures are per floating-point operation of a dense product, operands' way through the
    array included; a multiply-accumulate is two. `hbm`: from the stack to the engine's memory.
    """

    tensor_fp32: Figure
    tensor_bf16: Figure
    tensor_fp8: Figure
    tensor_fp4: Figure
    vector: Figure
    scalar: Figure
    gpsimd: Figure
    hbm: Figure
    link: Figure

    def __post_init__(self) -> None:
        for label, figure in self.figures():
            if figure.value <= 0:
                raise ConfigError(label, figure.value, "above 0")

    def figures(self) -> NamedFigures:
        """Every figure by its field's name."""
        return figures_of(self)

    def tensor_joules(self, dtype: str) -> float:
        """Joules of one operation of "fp32", "bf16", "fp8" or "fp4"; raises ConfigError."""
        if dtype not in ("fp32", "bf16", "fp8", "fp4"):
            raise ConfigError("dtype", dtype, "fp32, bf16, fp8 or fp4")
        figure: Figure = getattr(self, f"tensor_{dtype}")
        return figure.value * PICO


def work_energy_of(chip: ChipSpec) -> WorkEnergy:
    """The energy of work on `chip`; an unknown chip counts as 5 nm.

    A format that the chip widens, or multiplies no faster, costs as the wider one.
    """
    process = _PROCESS_OF_CHIP.get(chip.name, "5 nm")
    logic = _logic_energies(process)
    own_fp8 = chip.tensor_flops_per_s("fp8") > chip.tensor_flops_per_s("bf16")
    fp4_times = chip.tensor_flops_per_s("fp4") / chip.tensor_flops_per_s("fp8")
    fp8 = logic["tensor_fp8"] if own_fp8 else logic["tensor_bf16"]
    return WorkEnergy(
        tensor_fp32=logic["tensor_fp32"],
        tensor_bf16=logic["tensor_bf16"],
        tensor_fp8=fp8,
        tensor_fp4=_fp4_energy(fp8, fp4_times) if fp4_times > 1 else fp8,
        vector=logic["vector"],
        scalar=logic["scalar"],
        gpsimd=logic["gpsimd"],
        hbm=_HBM,
        link=_LINK,
    )


def _fp4_energy(fp8: Figure, times_as_fast: float) -> Figure:
    """FP4's energy on an engine that multiplies it so many times as fast as FP8."""
    return Figure(
        fp8.value / times_as_fast,
        fp8.unit,
        f"assumed: FP8's {fp8.value:.3g} / {times_as_fast:.3g}: it multiplies FP4 so many "
        "times as fast within the same power",
    )


_HBM: Final = Figure(
    6.0,
    "pJ/bit",
    "assumed: Micron gives 6.0 pJ/bit for HBM2E as a device, O'Connor et al. (MICRO 2017) "
    "3.9 for HBM2; newer stacks take less, the way over the chip adds. An H200's decode draws "
    "137-300 of 700 W (arXiv 2605.11999)",
)
_LINK: Final = Figure(
    2.0,
    "pJ/bit",
    "assumed: lanes are always on, and so in the idle watts; this is for the way between "
    "memory and lanes",
)


def _logic_energies(process: str) -> dict[str, Figure]:
    """Energies that depend on the process: arithmetic with its operands."""
    factor, said = PROCESS_FACTORS[process]
    bf16 = (
        0.6,
        "pJ/FLOP",
        "a dense BF16 product at its full 989 TFLOPS then takes an H100 to its 700 W, as matrix "
        "benchmarks do, and near it in prefill (POLCA, arXiv 2308.12908: prompts set the peak)",
    )
    base = {
        "tensor_bf16": bf16,
        "tensor_fp32": (
            0.6 * 4.6 / 1.5,
            "pJ/FLOP",
            f"BF16 x (3.7 + 0.9) / (1.1 + 0.4), multiply and add of 32 and 16 bit, {_HOROWITZ}",
        ),
        "tensor_fp8": (
            0.3,
            "pJ/FLOP",
            "half of BF16: Nvidia's chips multiply FP8 at twice the rate within the same power",
        ),
        "vector": (
            2 * 0.6 * 4.6 / 1.5,
            "pJ/FLOP",
            "twice FP32 in the array: each operand is read for one operation alone",
        ),
        "scalar": (
            8 * 0.6 * 4.6 / 1.5,
            "pJ/op",
            "four vector operations: a table look-up and an interpolation",
        ),
        "gpsimd": (
            8 * 0.6 * 4.6 / 1.5,
            "pJ/op",
            "four vector operations: a general processor's instruction and its address",
        ),
    }
    return {
        name: Figure(
            value * factor,
            unit,
            f"assumed: {value:.3g} at 5 nm ({why}) x {factor:.3g} at {process} ({said})",
        )
        for name, (value, unit, why) in base.items()
    }
