"""Figures shared by AWS's chips: the systolic array and the DMA of NeuronCores v2 to v4."""

from typing import Final

from emulator.specs.figure import Figure
from emulator.specs.matrix_engine import MatrixEngine
from emulator.units import GB, MB

SDK: Final = "AWS Neuron SDK docs"
DMA_GUIDE: Final = f"{SDK}, nki-dma-bandwidth-guide.rst"
SPARSE: Final = "16-bit with structured sparsity (4:16 to 1:2), four times dense"
_NKI_V2: Final = f"{SDK}, trainium_inferentia2_arch.rst"
_FLOPS_PER_MAC: Final = 2
_DMA_ENGINES_PER_CORE: Final = 16

DMA_START: Final = Figure(1_300, "ns", f"{DMA_GUIDE}: semaphore to start of transfer")
SATURATING: Final = Figure(4_096, "bytes", f"{DMA_GUIDE}: at least 4 KiB to saturate an engine")
LAUNCH: Final = Figure(
    15_000,
    "ns",
    "assumed: unpublished; one compiled graph is started per step, not one kernel per "
    "operation, and a start goes through the host's driver",
)
MICROCODE: Final = Figure(
    96 * MB, "bytes", f"{SDK}, neuron-runtime/explore/device-memory.rst, per physical core"
)

HOP: Final = Figure(
    1_000,
    "ns",
    f"assumed: the lower end of the 1-2 us per hop that {SDK}, collectives.rst, give for a "
    "ring on Trn2; unpublished for switches",
)
NETWORK_START: Final = Figure(
    15_000,
    "ns",
    f"{SDK}, collectives.rst: about 15 us for EFA's smallest packet, HBM to HBM, on Trn2",
)


def array_flops_per_s(cores: int, clock_hz: float) -> float:
    """16-bit rate of `cores` arrays of 128 x 128, one product and sum a cycle each."""
    return cores * 128 * 128 * _FLOPS_PER_MAC * clock_hz


def array_rate(cores: int, clock_hz: float, times: float, why: str) -> Figure:
    """A rate of the arrays, as a multiple of their 16-bit rate."""
    return Figure(
        array_flops_per_s(cores, clock_hz) * times,
        "FLOP/s",
        f"arithmetic: {cores} cores x 128 x 128 MAC x 2 x {clock_hz / 1e9:g} GHz x "
        f"{times:g}: {why}",
    )


def printed_rate(page: str, tflops: float) -> Figure:
    """A rate that an AWS page prints in TFLOPS."""
    return Figure(tflops * 1e12, "FLOP/s", f"{page}: {tflops:,g} TFLOPS")


def elementwise_rate(cores: int, clock_hz: float, source: str) -> Figure:
    """Rate of an engine that takes 128 FP32 elements a cycle in each core."""
    return Figure(
        cores * 128 * clock_hz,
        "op/s",
        f"arithmetic: {cores} cores x 128 elements a cycle x {clock_hz / 1e9:g} GHz ({source})",
    )


def dma_rate(cores: int, bytes_per_ns: int) -> Figure:
    """Rate of all DMA engines of a chip together, at `bytes_per_ns` each."""
    return Figure(
        cores * _DMA_ENGINES_PER_CORE * bytes_per_ns * GB,
        "bytes/s",
        f"{DMA_GUIDE}: {bytes_per_ns} B/ns achievable x {_DMA_ENGINES_PER_CORE} engines x "
        f"{cores} cores",
    )


def array(
    *, clock_hz: float, mx_rows: int, mx_source: str, source: str, ramps: bool
) -> MatrixEngine:
    """A NeuronCore's array; `ramps`: its dI/dt throttle lets it start at half its rate."""
    steady = "none: the throttle is described for Trainium2 and Trainium3"
    glossary = f"{SDK}, neuron-explorer/glossary.rst: dI/dt throttle"
    return MatrixEngine(
        tile_rows=Figure(128, "rows", source),
        mx_tile_rows=Figure(mx_rows, "rows", mx_source),
        tile_columns=Figure(128, "columns", source),
        moving_rows_min=Figure(
            64, "rows", f"{_NKI_V2}: issue interval max(N, 64) cycles, stated for NeuronCore-v2"
        ),
        sub_arrays=Figure(4, "sub-arrays", f"{source}: row tiling of 32 rows"),
        fill_drain_ns=Figure(
            (128 + 128) / clock_hz * 1e9,
            "ns",
            f"arithmetic: 128 rows in and 128 columns out at {clock_hz / 1e9:g} GHz",
        ),
        ramp_share=Figure(
            0.5 if ramps else 1,
            "of peak",
            f"{glossary}, about 50 % at the start" if ramps else steady,
        ),
        ramp_ns=Figure(
            3_000 if ramps else 0,
            "ns",
            f"{glossary}, about 3 us to the full rate" if ramps else steady,
        ),
    )
