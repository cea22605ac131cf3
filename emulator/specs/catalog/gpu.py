"""GPUs as chips of the catalog: shared figures, absent parts, unpublished values.

A GPU's multiprocessors are one logical core: a kernel spreads over all, and all see the whole
memory. Without DMA engines, its DMA rate is that of its HBM.
"""

from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.matrix_engine import MatrixEngine
from emulator.units import MB, MIB

DMA_START: Final = Figure(
    500,
    "ns",
    "assumed: between an HBM load on H100, 478 cycles or 0.27 us (arXiv 2402.13499), and "
    "about 1 us for a load over a link",
)
SATURATING: Final = Figure(
    128, "bytes", "CUDA C++ Programming Guide: one cache line for a warp's access"
)
LAUNCH: Final = Figure(
    1_500,
    "ns",
    "assumed: between two dependent kernels of one captured graph, 1 to 2 us; a launch from "
    "the host takes about 5 us",
)
MICROCODE: Final = Figure(
    8 * MB,
    "bytes",
    "assumed: a runtime context and library workspaces of about 1 GB a GPU, spread over its "
    "multiprocessors",
)

ARITHMETIC_GUIDE: Final = "CUDA C++ Programming Guide, arithmetic throughput"

NETWORK_START: Final = Figure(
    5_000,
    "ns",
    "assumed: ib_write_lat between hosts is about 2 us; a GPU starts the transfer, and the "
    "first byte lands in another's memory",
)
SWITCH_HOP: Final = Figure(300, "ns", "assumed: NVIDIA publishes no latency of an NVSwitch")
LINK_HOP: Final = Figure(300, "ns", "assumed: AMD publishes no latency of a link between two GPUs")


def tiles(*, rows: int, mx_rows: int, columns: int, moving_rows: int, source: str) -> MatrixEngine:
    """A GPU's matrix unit by its instruction's shape, without ramp or fill time."""
    unmodelled = "assumed: not modelled for GPUs, whose instructions overlap"
    return MatrixEngine(
        tile_rows=Figure(rows, "rows", source),
        mx_tile_rows=Figure(mx_rows, "rows", source),
        tile_columns=Figure(columns, "columns", source),
        moving_rows_min=Figure(moving_rows, "rows", source),
        sub_arrays=Figure(1, "sub-arrays", "none: an instruction uses the unit"),
        fill_drain_ns=Figure(0, "ns", unmodelled),
        ramp_share=Figure(1, "of peak", unmodelled),
        ramp_ns=Figure(0, "ns", unmodelled),
    )


def tflops(value: float, source: str) -> Figure:
    """A rate given in TFLOPS, dense."""
    return Figure(value * 1e12, "FLOP/s", source)


def special_functions(fp32_tflops: float, a_cycle: int, source: str) -> Figure:
    """Special functions a cycle and multiprocessor, beside 128 FMAs, which are 256 flops."""
    return Figure(
        fp32_tflops * 1e12 * a_cycle / 256,
        "op/s",
        f"arithmetic: {a_cycle} special functions a cycle beside 128 FMAs ({source}), "
        f"so FP32 FLOP/s / {256 // a_cycle}",
    )


def stack_bytes(mebibytes: int, stacks: int, printed: str) -> Figure:
    """One of `stacks` equal parts of the memory that a GPU's driver shows.

    Datasheets print a few per cent less, as their GB are GiB, or nearly: 80 GB of an H100 are
    81,559 MiB.
    """
    return Figure(
        mebibytes * MIB // stacks,
        "bytes",
        f"arithmetic: {mebibytes:,} MiB, as its driver shows, / {stacks} stacks ({printed})",
    )


def one_logical_core(multiprocessors: int) -> Figure:
    """Multiprocessors of a kernel: all."""
    return Figure(
        multiprocessors,
        "cores per logical core",
        "by definition: a kernel spreads over all multiprocessors",
    )


def loads(hbm_bytes_per_s: float) -> Figure:
    """The DMA rate of a chip whose cores load from HBM themselves."""
    return Figure(hbm_bytes_per_s, "bytes/s", "arithmetic: the HBM rate; loads need no DMA engine")
