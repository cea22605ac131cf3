"""AMD CDNA: MI300X, MI325X (the same dies, more memory) and MI355X.

Boxes of eight with a link for every two. A compute unit is a core here.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.catalog.gpu import (
    DMA_START,
    LAUNCH,
    MICROCODE,
    SATURATING,
    loads,
    one_logical_core,
    stack_bytes,
    tflops,
    tiles,
)
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import BITS_PER_BYTE, GB, KIB, MIB

_MI300X: Final = "AMD Instinct MI300X data sheet"
_MI325X: Final = "AMD Instinct MI325X data sheet"
_MI355X: Final = "AMD Instinct MI355X data sheet"
_ROCM: Final = "ROCm docs, gpu-specs.rst"
_CALCULATOR: Final = "AMD Matrix Instruction Calculator"
_NETWORK: Final = Figure(
    400 * GB / BITS_PER_BYTE,
    "bytes/s",
    "AMD Instinct reference design of eight: one network card of 400 Gb/s per GPU",
)

_FP32_MI300X: Final = tflops(163.4, f"{_MI300X}: vector and matrix alike; TF32 has 653.7 TFLOPS")
MI300X: Final = ChipSpec(
    name="mi300x",
    maker="AMD",
    generation="cdna3",
    cores=Figure(304, "cores", f"{_MI300X}: compute units"),
    lnc_sizes=(304,),
    default_lnc=one_logical_core(304),
    dma_bytes_per_s=loads(5.3e12),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    launch_ns=LAUNCH,
    microcode_bytes_per_core=MICROCODE,
    matrix=tiles(
        rows=16,
        mx_rows=32,
        columns=16,
        moving_rows=16,
        source=f"{_CALCULATOR}: v_mfma 16x16x16 in BF16, 16x16x32 in FP8, at the full rate",
    ),
    hbm_stacks=Figure(8, "stacks", _MI300X),
    hbm_stack_bytes=stack_bytes(196_592, 8, f"{_MI300X}: 192 GB"),
    hbm_bytes_per_s=Figure(5.3e12, "bytes/s", f"{_MI300X}: 5.325 TB/s peak"),
    tensor_bf16_flops_per_s=tflops(1_307.4, _MI300X),
    tensor_fp8_flops_per_s=tflops(2_614.9, _MI300X),
    tensor_sparse_flops_per_s=tflops(2_614.9, f"{_MI300X}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32_MI300X,
    vector_flops_per_s=_FP32_MI300X,
    scalar_ops_per_s=Figure(
        163.4e12 / 16,
        "op/s",
        "arithmetic: 16 transcendentals a cycle and compute unit, a quarter of its 64 lanes "
        "(AMD CDNA 3 ISA), beside 256 flops; so FP32 FLOP/s / 16",
    ),
    sbuf_bytes=Figure(
        32 * MIB + 304 * 64 * KIB,
        "bytes",
        f"arithmetic: 32 MiB of L2 + 304 x 64 KiB of LDS ({_ROCM}); its 256 MiB Infinity "
        "Cache belongs to the memory and is left out",
    ),
    link_tray_bytes_per_s=Figure(
        7 * 64 * GB, "bytes/s", f"arithmetic: 7 Infinity Fabric links x 128 GB/s / 2 ({_MI300X})"
    ),
    scale_out_bytes_per_s=_NETWORK,
    idle_watts=Figure(
        140, "W", "assumed: no data sheet says; rocm-smi of idle MI300X modules prints about 140 W"
    ),
    budget_watts=Figure(750, "W", _MI300X),
)

MI325X: Final = replace(
    MI300X,
    name="mi325x",
    hbm_stack_bytes=stack_bytes(
        262_128, 8, f"{_MI325X}: 256 GB; assumed 16 MiB less than 256 GiB, as on MI300X and MI355X"
    ),
    hbm_bytes_per_s=Figure(6.0e12, "bytes/s", _MI325X),
    dma_bytes_per_s=loads(6.0e12),
    budget_watts=Figure(1_000, "W", _MI325X),
)

_FP32_MI355X: Final = tflops(157.3, f"{_MI355X}: vector and matrix alike")
MI355X: Final = replace(
    MI300X,
    name="mi355x",
    generation="cdna4",
    cores=Figure(256, "cores", f"{_MI355X}: compute units"),
    lnc_sizes=(256,),
    default_lnc=one_logical_core(256),
    dma_bytes_per_s=loads(8.0e12),
    matrix=tiles(
        rows=32,
        mx_rows=128,
        columns=16,
        moving_rows=16,
        source=f"{_CALCULATOR}: v_mfma 16x16x32 in BF16, 16x16x128 in FP8, FP6 and FP4",
    ),
    hbm_stacks=Figure(8, "stacks", f"{_MI355X}: 8 stacks of 36 GB"),
    hbm_stack_bytes=stack_bytes(294_896, 8, f"{_MI355X}: 288 GB"),
    hbm_bytes_per_s=Figure(8.0e12, "bytes/s", _MI355X),
    tensor_bf16_flops_per_s=tflops(2_516.6, _MI355X),
    tensor_fp8_flops_per_s=tflops(5_033.2, _MI355X),
    tensor_fp4_flops_per_s=tflops(10_066.3, f"{_MI355X}: MXFP4 and MXFP6"),
    tensor_sparse_flops_per_s=tflops(5_033.2, f"{_MI355X}: 2:4 sparsity in 16 bit"),
    tensor_fp32_flops_per_s=_FP32_MI355X,
    vector_flops_per_s=_FP32_MI355X,
    scalar_ops_per_s=Figure(
        157.3e12 / 8,
        "op/s",
        "arithmetic: 32 transcendentals a cycle and compute unit, twice CDNA 3 (AMD CDNA 4 "
        "whitepaper), beside 256 flops; so FP32 FLOP/s / 8",
    ),
    sbuf_bytes=Figure(
        32 * MIB + 256 * 160 * KIB,
        "bytes",
        f"arithmetic: 32 MiB of L2 + 256 x 160 KiB of LDS ({_ROCM}); its 256 MiB Infinity "
        "Cache belongs to the memory and is left out",
    ),
    link_tray_bytes_per_s=Figure(
        7 * 76.8 * GB,
        "bytes/s",
        f"arithmetic: 7 Infinity Fabric links x 153.6 GB/s / 2 ({_MI355X})",
    ),
    idle_watts=Figure(200, "W", "assumed: unpublished; a seventh of its budget, as MI325X"),
    budget_watts=Figure(1_400, "W", _MI355X),
)
