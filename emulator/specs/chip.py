"""The shape of a chip: what time, memory and power need to know of one accelerator.

All rates are per chip, dense, and ceilings: a roofline divides work by them. Catalog data fills
this shape, one file per chip; nothing here knows of a particular chip.
"""

from dataclasses import dataclass, fields

from emulator.errors import ConfigError
from emulator.specs.figure import Figure, NamedFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSpec:
    """One chip; NeuronLink rates are per direction, one per tier of the system's fabric."""

    name: str
    neuron_cores: Figure
    lnc_sizes: tuple[int, ...]  # physical cores that may form one logical core
    default_lnc: Figure
    hbm_stacks: Figure
    hbm_stack_bytes: Figure
    hbm_bytes_per_s: Figure
    dma_bytes_per_s: Figure
    dma_start_ns: Figure
    tensor_fp32_flops_per_s: Figure
    tensor_bf16_flops_per_s: Figure
    tensor_mxfp8_flops_per_s: Figure
    tensor_mxfp4_flops_per_s: Figure
    vector_flops_per_s: Figure
    scalar_ops_per_s: Figure
    sbuf_bytes: Figure
    link_tray_bytes_per_s: Figure
    link_backplane_bytes_per_s: Figure
    link_cross_rack_bytes_per_s: Figure
    scale_out_bytes_per_s: Figure
    microcode_bytes_per_core: Figure
    idle_watts: Figure
    budget_watts: Figure

    def __post_init__(self) -> None:
        for label, figure in self.figures():
            if figure.value <= 0:
                raise ConfigError(field=f"{self.name}.{label}", value=figure.value, expected="> 0")
        if self.idle_watts.value > self.budget_watts.value:
            raise ConfigError(
                field=f"{self.name}.idle_watts",
                value=self.idle_watts.value,
                expected=f"at most budget_watts, {self.budget_watts.value:g}",
            )

    def figures(self) -> NamedFigures:
        """Every figure of the chip by its field's name, derived ones last."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        own = tuple((name, value) for name, value in named if isinstance(value, Figure))
        stacks = "arithmetic: hbm_stacks x hbm_stack_bytes"
        return (*own, ("hbm_bytes", Figure(value=self.hbm_bytes, unit="bytes", source=stacks)))

    @property
    def hbm_bytes(self) -> int:
        """HBM of the whole chip."""
        return self.hbm_stacks.count * self.hbm_stack_bytes.count

    @property
    def memory_bytes_per_s(self) -> float:
        """What the engines can really stream from HBM: the slower of the stacks and the DMAs."""
        return min(self.hbm_bytes_per_s.value, self.dma_bytes_per_s.value)

    def logical_cores(self, lnc: int) -> int:
        """Logical cores of the chip when `lnc` physical cores form one; raises ConfigError."""
        if lnc not in self.lnc_sizes:
            sizes = ", ".join(map(str, self.lnc_sizes))
            raise ConfigError(field="lnc", value=lnc, expected=f"one of {sizes} on {self.name}")
        return self.neuron_cores.count // lnc

    def tensor_flops_per_s(self, dtype: str) -> float:
        """Dense TensorE ceiling of the chip for "fp32" or "bf16"; raises ConfigError otherwise.

        Products of MXFP8 and MXFP4 weights have a ceiling of their own (see timing).
        """
        match dtype:
            case "fp32":
                return self.tensor_fp32_flops_per_s.value
            case "bf16":
                return self.tensor_bf16_flops_per_s.value
        raise ConfigError(field="dtype", value=dtype, expected="fp32 or bf16")
