"""A chip's figures: dense ceilings per chip. None is a part that it lacks, or unpublished."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from emulator.errors import ConfigError
from emulator.specs.assumptions import AssumptionSet, apply_assumption
from emulator.specs.figure import Figure, NamedFigures, figures_of
from emulator.specs.matrix_engine import MatrixEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSpec:
    """One chip; link rates are per direction, one per tier of the system's fabric.

    Attributes:
        generation: chips that run the same compiled kernels; empty for the only one.
        announced: not yet delivered.
        cores: NeuronCores; a GPU's multiprocessors, which together are one logical core.
        lnc_sizes: physical cores that may form one logical core.
        dma_engines: None in a GPU, whose cores load from HBM themselves.
        launch_ns: to start a kernel after the one before it, or a compiled graph.
        tensor_sparse_flops_per_s: 16-bit products with structured sparsity.
        sbuf_bytes: memory beside the engines; a GPU's L2 and shared memory.
        psum_bytes: separate memory for the matrix engine's sums.
        switches: conflicts between sources, and their assumptions.
    """

    name: str
    maker: str
    generation: str = ""
    announced: bool = False
    cores: Figure
    lnc_sizes: tuple[int, ...]
    default_lnc: Figure
    hbm_stacks: Figure
    hbm_stack_bytes: Figure
    hbm_bytes_per_s: Figure
    dma_bytes_per_s: Figure
    dma_start_ns: Figure
    dma_saturating_bytes: Figure
    dma_engines: Figure | None = None
    launch_ns: Figure
    matrix: MatrixEngine
    tensor_fp32_flops_per_s: Figure
    tensor_bf16_flops_per_s: Figure
    tensor_fp8_flops_per_s: Figure | None = None
    tensor_fp4_flops_per_s: Figure | None = None
    tensor_sparse_flops_per_s: Figure | None = None
    vector_flops_per_s: Figure
    scalar_ops_per_s: Figure
    gpsimd_ops_per_s: Figure | None = None
    collective_cores: Figure | None = None
    sbuf_bytes: Figure
    psum_bytes: Figure | None = None
    link_tray_bytes_per_s: Figure
    link_backplane_bytes_per_s: Figure | None = None
    link_cross_rack_bytes_per_s: Figure | None = None
    scale_out_bytes_per_s: Figure | None = None
    microcode_bytes_per_core: Figure
    idle_watts: Figure
    budget_watts: Figure
    switches: tuple[AssumptionSet, ...] = ()

    def __hash__(self) -> int:
        """Of its name: it is in keys of caches, and has many figures."""
        return hash(self.name)

    def __post_init__(self) -> None:
        may_be_zero = {label for label, _ in self.matrix.figures()} | {"microcode_bytes_per_core"}
        for label, figure in self.figures():
            if figure.value <= 0 and label not in may_be_zero:
                raise ConfigError(f"{self.name}.{label}", figure.value, "> 0")
        if self.idle_watts.value > self.budget_watts.value:
            raise ConfigError(
                f"{self.name}.idle_watts",
                self.idle_watts.value,
                f"at most budget_watts, {self.budget_watts.value:g}",
            )

    def figures(self) -> NamedFigures:
        """Every figure of the chip by its field's name, derived ones last."""
        stacks = "arithmetic: hbm_stacks x hbm_stack_bytes"
        total = ("hbm_bytes", Figure(self.hbm_bytes, "bytes", stacks))
        return (*self.own_figures(), total)

    def own_figures(self) -> NamedFigures:
        """Those that are not derived, the matrix engine's last."""
        return (*figures_of(self), *self.matrix.figures())

    def with_figures(self, figures: Mapping[str, Figure]) -> "ChipSpec":
        """The chip with other ones of `own_figures`; raises ConfigError for impossible values."""
        of_matrix = dict(self.matrix.figures()).keys() & figures.keys()
        own = {name: figure for name, figure in figures.items() if name not in of_matrix}
        matrix = replace(self.matrix, **{name: figures[name] for name in of_matrix})
        return replace(self, matrix=matrix, **own)  # type: ignore[arg-type]

    @property
    def assumption_sets(self) -> tuple[AssumptionSet, ...]:
        """Its switches."""
        return self.switches

    @property
    def hbm_bytes(self) -> int:
        """HBM of the whole chip."""
        return self.hbm_stacks.count * self.hbm_stack_bytes.count

    @property
    def memory_bytes_per_s(self) -> float:
        """Real streaming rate from HBM: the slower of the stacks and the DMAs."""
        return min(self.hbm_bytes_per_s.value, self.dma_bytes_per_s.value)

    def logical_cores(self, lnc: int) -> int:
        """Logical cores of `lnc` physical cores; raises ConfigError for another LNC."""
        if lnc not in self.lnc_sizes:
            sizes = ", ".join(map(str, self.lnc_sizes))
            raise ConfigError("lnc", lnc, f"one of {sizes} on {self.name}")
        return self.cores.count // lnc

    def tensor_flops_per_s(self, dtype: str) -> float:
        """Dense ceiling of the matrix engine for "fp32", "bf16", "fp8" or "fp4".

        An unsupported format is widened first: FP4 into FP8, FP8 into BF16. Raises ConfigError for
        another dtype.
        """
        match dtype:
            case "fp32":
                return self.tensor_fp32_flops_per_s.value
            case "bf16":
                return self.tensor_bf16_flops_per_s.value
            case "fp8":
                fp8 = self.tensor_fp8_flops_per_s
                return self.tensor_flops_per_s("bf16") if fp8 is None else fp8.value
            case "fp4":
                fp4 = self.tensor_fp4_flops_per_s
                return self.tensor_flops_per_s("fp8") if fp4 is None else fp4.value
        raise ConfigError("dtype", dtype, "fp32, bf16, fp8 or fp4")

    def assuming(self, name: str, assumption: str) -> "ChipSpec":
        """The chip with one of its switches turned; figures that were set stay. ConfigError lists
        the switches.
        """
        for switch in self.switches:
            if switch.name == name:
                return apply_assumption(self, switch.assumption(assumption))
        names = ", ".join(switch.name for switch in self.switches) or "none"
        raise ConfigError("assumption", name, f"a switch of {self.name}: {names}")
