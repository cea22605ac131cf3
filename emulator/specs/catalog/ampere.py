"""NVIDIA Ampere: A100, the SXM module with 80 GB."""

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

_A100: Final = "NVIDIA A100 datasheet, SXM, 80 GB"
_WHITEPAPER: Final = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_MULTIPROCESSORS: Final = 108
_FP32_TFLOPS: Final = 19.5

_FP32: Final = tflops(
    _FP32_TFLOPS, f"{_A100}: FP32 outside the tensor cores; TF32 has 156 TFLOPS without sparsity"
)
A100: Final = ChipSpec(
    name="a100",
    maker="NVIDIA",
    generation="ampere",
    cores=Figure(_MULTIPROCESSORS, "cores", _WHITEPAPER),
    lnc_sizes=(_MULTIPROCESSORS,),
    default_lnc=one_logical_core(_MULTIPROCESSORS),
    dma_bytes_per_s=loads(2.039e12),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    launch_ns=LAUNCH,
    microcode_bytes_per_core=MICROCODE,
    matrix=tiles(
        rows=16,
        mx_rows=32,
        columns=8,
        moving_rows=16,
        source="PTX ISA, mma.m16n8k16 (k32 in INT8): 8 outputs by 16 rows",
    ),
    hbm_stacks=Figure(5, "stacks", _WHITEPAPER),
    hbm_stack_bytes=stack_bytes(81_920, 5, f"{_A100}: 80 GB"),
    hbm_bytes_per_s=Figure(2.039e12, "bytes/s", _A100),
    tensor_bf16_flops_per_s=tflops(312, f"{_A100}, without sparsity"),
    tensor_sparse_flops_per_s=tflops(624, f"{_A100}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32,
    vector_flops_per_s=_FP32,
    scalar_ops_per_s=special_functions(_FP32_TFLOPS, 16, ARITHMETIC_GUIDE),
    sbuf_bytes=Figure(
        40 * MIB + _MULTIPROCESSORS * 164 * KIB,
        "bytes",
        f"arithmetic: 40 MB of L2 + 108 x 164 KB of shared memory ({_WHITEPAPER})",
    ),
    link_tray_bytes_per_s=Figure(
        300 * GB, "bytes/s", f"arithmetic: NVLink, 600 GB/s / 2 ({_A100})"
    ),
    scale_out_bytes_per_s=Figure(
        200 * GB / BITS_PER_BYTE,
        "bytes/s",
        "DGX A100 user guide: one ConnectX-6 of 200 Gb/s per GPU",
    ),
    idle_watts=Figure(
        50, "W", "assumed: no datasheet says; nvidia-smi of idle A100 SXM modules prints 50 to 60 W"
    ),
    budget_watts=Figure(400, "W", _A100),
)
