"""NVIDIA Blackwell: B200 in boxes of eight, GB200 beside a Grace; B300 and GB300, the Ultra.

Sources disagree on GB200's rates and on GB300's usable memory: both are switches.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.assumptions import Assumption, assumption_set
from emulator.specs.catalog.gpu import (
    ARITHMETIC_GUIDE,
    DMA_START,
    LAUNCH,
    MICROCODE,
    SATURATING,
    loads,
    one_logical_core,
    special_functions,
    stack_bytes,
    tflops,
    tiles,
)
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import BITS_PER_BYTE, GB, GIB, KIB, MIB

_HGX: Final = "NVIDIA HGX B200 datasheet"
_HGX_ULTRA: Final = "NVIDIA HGX B300 datasheet"
_GB200: Final = "NVIDIA GB200 NVL72 datasheet"
_GB300: Final = "NVIDIA GB300 NVL72 datasheet"
_VERDA: Final = "verda.com, GB300 NVL72 architecture"
_ULTRA: Final = "NVIDIA, Inside NVIDIA Blackwell Ultra"
_PER_GPU: Final = "/ 72 GPUs, halved: printed with sparsity"
_LAUNCHED: Final = "as its CUDA device properties report (multi_processor_count)"
_POWER_SERVICE: Final = "NVIDIA Domain Power Service docs, device specifications, GB200"
_L2: Final = "126 MB of L2 (chipsandcheese.com, Nvidia's B200)"


def _multiprocessors(count: int) -> Figure:
    return Figure(count, "cores", _LAUNCHED)


def _sbuf(multiprocessors: int) -> Figure:
    return Figure(
        126 * MIB + multiprocessors * 228 * KIB,
        "bytes",
        f"arithmetic: {_L2} + {multiprocessors} x 228 KB of shared memory (CUDA C++ "
        "Programming Guide)",
    )


def _network(gigabits_per_s: int, source: str) -> Figure:
    return Figure(gigabits_per_s * GB / BITS_PER_BYTE, "bytes/s", source)


_FP32_B200: Final = tflops(
    75, f"{_HGX}: FP32 outside the tensor cores; TF32 has 1,125 TFLOPS; elsewhere 80 TFLOPS"
)
B200: Final = ChipSpec(
    name="b200",
    maker="NVIDIA",
    generation="blackwell",
    cores=_multiprocessors(148),
    lnc_sizes=(148,),
    default_lnc=one_logical_core(148),
    dma_bytes_per_s=loads(7.7e12),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    launch_ns=LAUNCH,
    microcode_bytes_per_core=MICROCODE,
    matrix=tiles(
        rows=16,
        mx_rows=64,
        columns=128,
        moving_rows=16,
        source="PTX ISA, tcgen05.mma: 128 outputs by N rows, k16 in 16 bit, k64 in FP4; assumed: "
        "16 at least, as on Hopper",
    ),
    hbm_stacks=Figure(8, "stacks", "glennklockwood.com, B200"),
    hbm_stack_bytes=stack_bytes(183_359, 8, "NVIDIA DGX B200 user guide: 180 GB"),
    hbm_bytes_per_s=Figure(7.7e12, "bytes/s", f"{_HGX}: 62 TB/s / 8; elsewhere up to 8 TB/s"),
    tensor_bf16_flops_per_s=tflops(2_250, f"{_HGX}, halved: printed with sparsity"),
    tensor_fp8_flops_per_s=tflops(4_500, f"{_HGX}, halved: printed with sparsity"),
    tensor_fp4_flops_per_s=tflops(9_000, f"{_HGX}, halved: printed with sparsity"),
    tensor_sparse_flops_per_s=tflops(4_500, f"{_HGX}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32_B200,
    vector_flops_per_s=_FP32_B200,
    scalar_ops_per_s=special_functions(75, 16, ARITHMETIC_GUIDE),
    sbuf_bytes=_sbuf(148),
    link_tray_bytes_per_s=Figure(
        900 * GB, "bytes/s", f"arithmetic: NVLink 5, 1.8 TB/s / 2 ({_HGX})"
    ),
    scale_out_bytes_per_s=_network(
        400, "NVIDIA DGX B200 user guide: one ConnectX-7 of 400 Gb/s per GPU"
    ),
    idle_watts=Figure(
        140, "W", "assumed: no datasheet says; nvidia-smi of idle B200 modules prints about 140 W"
    ),
    budget_watts=Figure(1_000, "W", _HGX),
)

_GB200_BASE: Final = replace(
    B200,
    name="gb200",
    cores=_multiprocessors(152),
    lnc_sizes=(152,),
    default_lnc=one_logical_core(152),
    hbm_stack_bytes=stack_bytes(
        189_471, 8, f"{_GB200}: 186 GB; {_VERDA} prints 129 GB, likely a typing error"
    ),
    hbm_bytes_per_s=Figure(8.0e12, "bytes/s", f"{_GB200}: 576 TB/s / 72"),
    dma_bytes_per_s=loads(8.0e12),
    tensor_fp32_flops_per_s=tflops(80, f"{_GB200}, per GPU; TF32 has 1,250 TFLOPS"),
    tensor_bf16_flops_per_s=tflops(2_500, f"{_GB200}: 360 PFLOPS {_PER_GPU}"),
    tensor_fp8_flops_per_s=tflops(5_000, f"{_GB200}: 720 PFLOPS {_PER_GPU}"),
    tensor_fp4_flops_per_s=tflops(10_000, f"{_GB200}: 1,440 PFLOPS {_PER_GPU}"),
    tensor_sparse_flops_per_s=tflops(5_000, f"{_GB200}: 360 PFLOPS / 72 GPUs, 2:4 in 16 bit"),
    vector_flops_per_s=tflops(80, f"{_GB200}, per GPU"),
    scalar_ops_per_s=special_functions(80, 16, ARITHMETIC_GUIDE),
    sbuf_bytes=_sbuf(152),
    scale_out_bytes_per_s=_network(400, "NVIDIA GB200 NVL72: one ConnectX-7 of 400 Gb/s per GPU"),
    idle_watts=Figure(200, "W", f"{_POWER_SERVICE}: at least 200 W"),
    budget_watts=Figure(1_200, "W", f"{_POWER_SERVICE}: at most 1,200 W"),
)
_PRINTED: Final = Assumption(
    "verda",
    f"{_VERDA}: 4.5 PFLOPS in FP8, 9 in FP4, those of B200 at 1,000 W",
    {
        "tensor_fp8_flops_per_s": tflops(4_500, _VERDA),
        "tensor_fp4_flops_per_s": tflops(9_000, _VERDA),
    },
)
GB200: Final = replace(
    _GB200_BASE,
    switches=(
        assumption_set(
            _GB200_BASE,
            "tensor",
            _PRINTED,
            default="datasheet",
            why=f"{_GB200}: 5 PFLOPS in FP8, 10 in FP4, at 1,200 W",
        ),
    ),
)


def _with_whole_stacks(chip: ChipSpec) -> ChipSpec:
    """`chip` with a switch for the stacks' whole content, not only the driver's part."""
    whole = Assumption(
        "stacks",
        "what the stacks hold, the headline of 288 GB",
        {"hbm_stack_bytes": Figure(36 * GIB, "bytes", f"{_ULTRA}: 8 stacks of 12 dies, 288 GB")},
    )
    switch = assumption_set(
        chip, "hbm-capacity", whole, default="usable", why="what the driver leaves of it"
    )
    return replace(chip, switches=(switch,))


_TWICE: Final = f"{_ULTRA}: twice Blackwell's rate of exponentials"

B300: Final = _with_whole_stacks(
    replace(
        B200,
        name="b300",
        hbm_stack_bytes=stack_bytes(275_040, 8, f"{_HGX_ULTRA}: 270 GB a GPU"),
        hbm_bytes_per_s=Figure(8.0e12, "bytes/s", _ULTRA),
        dma_bytes_per_s=loads(8.0e12),
        tensor_bf16_flops_per_s=tflops(2_250, f"{_HGX_ULTRA}: 36 PFLOPS with sparsity / 8 / 2"),
        tensor_fp8_flops_per_s=tflops(4_500, f"{_HGX_ULTRA}: 72 PFLOPS with sparsity / 8 / 2"),
        tensor_fp4_flops_per_s=tflops(
            13_125, "glennklockwood.com, B300: 105 PFLOPS dense / 8; a later datasheet has 108"
        ),
        scalar_ops_per_s=special_functions(75, 32, _TWICE),
        scale_out_bytes_per_s=_network(800, "NVIDIA DGX B300: one ConnectX-8 of 800 Gb/s per GPU"),
        idle_watts=Figure(
            180,
            "W",
            "assumed: no datasheet says; nvidia-smi of idle B300 modules prints about 180 W",
        ),
        budget_watts=Figure(
            1_100, "W", "its driver's limit, as nvidia-smi prints; GB300 has 1,400 W"
        ),
    )
)

GB300: Final = _with_whole_stacks(
    replace(
        _GB200_BASE,
        name="gb300",
        hbm_stack_bytes=stack_bytes(284_208, 8, f"{_GB300}: 279 GB, 20 TB / 72"),
        hbm_bytes_per_s=Figure(8.0e12, "bytes/s", _ULTRA),
        tensor_fp4_flops_per_s=tflops(15_000, f"{_ULTRA}: dense NVFP4"),
        scalar_ops_per_s=special_functions(80, 32, _TWICE),
        scale_out_bytes_per_s=_network(800, f"{_GB300}: one ConnectX-8 of 800 Gb/s per GPU"),
        idle_watts=Figure(200, "W", f"assumed: as GB200 ({_POWER_SERVICE})"),
        budget_watts=Figure(1_400, "W", f"{_ULTRA}: up to 1,400 W; {_VERDA}"),
    )
)
