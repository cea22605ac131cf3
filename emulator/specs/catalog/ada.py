"""NVIDIA Ada: L40S, a PCIe card with GDDR6."""

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
from emulator.units import GB, KIB, MIB

_L40S: Final = "NVIDIA L40S datasheet"
_WHITEPAPER: Final = "NVIDIA Ada GPU Architecture whitepaper"
_MULTIPROCESSORS: Final = 142
_FP32_TFLOPS: Final = 91.6

_FP32: Final = tflops(
    _FP32_TFLOPS, f"{_L40S}: FP32 outside the tensor cores; TF32 has 183 TFLOPS without sparsity"
)
L40S: Final = ChipSpec(
    name="l40s",
    maker="NVIDIA",
    generation="ada",
    cores=Figure(_MULTIPROCESSORS, "cores", f"{_L40S}: 18,176 CUDA cores / 128"),
    lnc_sizes=(_MULTIPROCESSORS,),
    default_lnc=one_logical_core(_MULTIPROCESSORS),
    dma_bytes_per_s=loads(864 * GB),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    launch_ns=LAUNCH,
    microcode_bytes_per_core=MICROCODE,
    matrix=tiles(
        rows=16,
        mx_rows=32,
        columns=8,
        moving_rows=16,
        source="PTX ISA, mma.m16n8k16 (k32 in FP8): 8 outputs by 16 rows",
    ),
    hbm_stacks=Figure(1, "stacks", "by definition: all of its GDDR6, which has no stacks"),
    hbm_stack_bytes=stack_bytes(46_068, 1, f"{_L40S}: 48 GB"),
    hbm_bytes_per_s=Figure(864 * GB, "bytes/s", f"{_L40S}: GDDR6"),
    tensor_bf16_flops_per_s=tflops(362, f"{_L40S}, without sparsity"),
    tensor_fp8_flops_per_s=tflops(733, f"{_L40S}, without sparsity"),
    tensor_sparse_flops_per_s=tflops(733, f"{_L40S}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32,
    vector_flops_per_s=_FP32,
    scalar_ops_per_s=special_functions(_FP32_TFLOPS, 16, ARITHMETIC_GUIDE),
    sbuf_bytes=Figure(
        96 * MIB + _MULTIPROCESSORS * 100 * KIB,
        "bytes",
        f"arithmetic: 96 MB of L2 + 142 x 100 KB of shared memory ({_WHITEPAPER})",
    ),
    link_tray_bytes_per_s=Figure(
        32 * GB, "bytes/s", f"arithmetic: PCIe Gen4 x16, 64 GB/s / 2 ({_L40S}); it has no NVLink"
    ),
    idle_watts=Figure(
        35, "W", "assumed: no datasheet says; nvidia-smi of idle L40S cards prints about 35 W"
    ),
    budget_watts=Figure(350, "W", _L40S),
)
