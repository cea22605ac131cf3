"""NVIDIA Hopper: H100, H800 and H200, the SXM modules.

One die: H800 has fewer NVLinks, H200 more and faster memory.
"""

from dataclasses import replace
from typing import Final

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
from emulator.units import BITS_PER_BYTE, GB, KIB, MIB

_H100: Final = "NVIDIA H100 datasheet, SXM"
_H200: Final = "NVIDIA H200 datasheet, SXM"
_WHITEPAPER: Final = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_IDLE_H200: Final = "measured idle, 80.3 W (serialalice.pt, GPU Energy Benchmark)"
_MULTIPROCESSORS: Final = 132
_FP32_TFLOPS: Final = 67

_FP32_H100: Final = tflops(
    _FP32_TFLOPS,
    f"{_H100}: FP32 outside the tensor cores, as a product in full FP32; TF32 has 495 TFLOPS",
)
H100: Final = ChipSpec(
    name="h100",
    maker="NVIDIA",
    generation="hopper",
    cores=Figure(_MULTIPROCESSORS, "cores", _WHITEPAPER),
    lnc_sizes=(_MULTIPROCESSORS,),
    default_lnc=one_logical_core(_MULTIPROCESSORS),
    dma_bytes_per_s=loads(3.35e12),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    launch_ns=LAUNCH,
    microcode_bytes_per_core=MICROCODE,
    matrix=tiles(
        rows=16,
        mx_rows=32,
        columns=64,
        moving_rows=16,
        source="PTX ISA, wgmma.m64nNk16 (k32 in FP8): 64 outputs by N rows; assumed: the smallest "
        "tile of grouped kernels; N below 64 does not reach the peak (arXiv 2402.13499)",
    ),
    hbm_stacks=Figure(5, "stacks", _WHITEPAPER),
    hbm_stack_bytes=stack_bytes(81_559, 5, f"{_H100}: 80 GB"),
    hbm_bytes_per_s=Figure(3.35e12, "bytes/s", _H100),
    tensor_bf16_flops_per_s=tflops(989, f"{_H100}, halved: printed with sparsity"),
    tensor_fp8_flops_per_s=tflops(1_979, f"{_H100}, halved: printed with sparsity"),
    tensor_sparse_flops_per_s=tflops(1_979, f"{_H100}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32_H100,
    vector_flops_per_s=_FP32_H100,
    scalar_ops_per_s=special_functions(_FP32_TFLOPS, 16, ARITHMETIC_GUIDE),
    sbuf_bytes=Figure(
        50 * MIB + _MULTIPROCESSORS * 228 * KIB,
        "bytes",
        f"arithmetic: 50 MB of L2 + 132 x 228 KB of shared memory ({_WHITEPAPER})",
    ),
    link_tray_bytes_per_s=Figure(
        450 * GB, "bytes/s", f"arithmetic: NVLink, 900 GB/s / 2 ({_H100})"
    ),
    scale_out_bytes_per_s=Figure(
        400 * GB / BITS_PER_BYTE,
        "bytes/s",
        "DGX H100 user guide: one ConnectX-7 of 400 Gb/s per GPU",
    ),
    idle_watts=Figure(80.3, "W", f"assumed: no datasheet says; as on H200, {_IDLE_H200}"),
    budget_watts=Figure(700, "W", _H100),
)

H800: Final = replace(
    H100,
    name="h800",
    link_tray_bytes_per_s=Figure(
        200 * GB,
        "bytes/s",
        "arithmetic: NVLink, 400 GB/s / 2 (philisun.com on H800); DeepSeek-V3 technical "
        "report: 160 GB/s reached",
    ),
    budget_watts=Figure(700, "W", "as H100, whose die it is; a third-party 550 W is not credible"),
)

H200: Final = replace(
    H100,
    name="h200",
    hbm_stacks=Figure(6, "stacks", "NVIDIA H200 product pictures; 141 GB of 6 x 24 GB"),
    hbm_stack_bytes=stack_bytes(143_771, 6, f"{_H200}: 141 GB"),
    hbm_bytes_per_s=Figure(4.8e12, "bytes/s", _H200),
    dma_bytes_per_s=loads(4.8e12),
    idle_watts=Figure(80.3, "W", f"H200, {_IDLE_H200}"),
    budget_watts=Figure(700, "W", _H200),
)
