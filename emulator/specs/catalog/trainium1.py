"""Trainium1 and Inferentia2: two NeuronCore-v2 each, with different links."""

from dataclasses import replace
from typing import Final

from emulator.specs.assumptions import Assumption, assumption_set
from emulator.specs.catalog.neuron_core import (
    DMA_START,
    LAUNCH,
    MICROCODE,
    SATURATING,
    SDK,
    array,
    array_rate,
    dma_rate,
    elementwise_rate,
    printed_rate,
)
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import BITS_PER_BYTE, GB, GIB, MIB

_TRAINIUM: Final = f"{SDK}, neuron-hardware/trainium.rst"
_INFERENTIA2: Final = f"{SDK}, neuron-hardware/inferentia2.rst"
_CORE: Final = f"{SDK}, neuron-hardware/neuron-core-v2.rst"
_NKI: Final = f"{SDK}, nki/guides/architecture/trainium_inferentia2_arch.rst"
_A100_WATTS_PER_TFLOPS: Final = 400 / 312

_CORES: Final = 2
_TENSOR_HZ: Final = 2.8e9
_ELEMENTWISE_HZ: Final = 1.4e9
_BUDGET_WATTS: Final = round(190 * _A100_WATTS_PER_TFLOPS)


def _with_switches(chip: ChipSpec, page: str) -> ChipSpec:
    """`chip` with the rates and the DMA of its `page` as other assumptions."""
    rates = Assumption(
        "spec",
        "the chip's page: a little more than two arrays at their clock have; trainium2.rst "
        "prints 191 and 48",
        {
            "tensor_fp32_flops_per_s": printed_rate(page, 47.5),
            "tensor_bf16_flops_per_s": printed_rate(page, 190),
            "tensor_fp8_flops_per_s": printed_rate(page, 190),
        },
    )
    dma = Assumption(
        "spec",
        "the chip's page: more than the stacks deliver",
        {"dma_bytes_per_s": Figure(1e12, "bytes/s", f"{page}: 1 TB/s of DMA")},
    )
    tensor = "the arithmetic of the array at its clock"
    return replace(
        chip,
        switches=(
            assumption_set(chip, "tensor", rates, default="array", why=tensor),
            assumption_set(chip, "dma", dma, default="achievable", why="what the engines reach"),
        ),
    )


_BASE: Final = ChipSpec(
    name="trainium1",
    maker="AWS",
    cores=Figure(_CORES, "cores", _TRAINIUM),
    lnc_sizes=(1,),
    default_lnc=Figure(1, "cores per logical core", f"{SDK}: NEURON_LOGICAL_NC_CONFIG, default"),
    hbm_stacks=Figure(2, "stacks", _NKI),
    hbm_stack_bytes=Figure(16 * GIB, "bytes", f"{_TRAINIUM}: 32 GiB / 2"),
    hbm_bytes_per_s=Figure(820 * GIB, "bytes/s", f"{_TRAINIUM}: 820 GiB/s; elsewhere 0.8 TB/s"),
    dma_bytes_per_s=dma_rate(_CORES, 17),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    dma_engines=Figure(32, "engines", f"{_NKI}: 16 per core"),
    launch_ns=LAUNCH,
    matrix=array(
        clock_hz=_TENSOR_HZ,
        mx_rows=128,
        mx_source="none: no block-scaled format; FP8 runs as BF16",
        source=_NKI,
        ramps=False,
    ),
    tensor_fp32_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1 / 4, f"a quarter of BF16 ({_NKI}); the chip's page says 47.5 TFLOPS"
    ),
    tensor_bf16_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1, f"({_NKI}); the chip's page says 190 TFLOPS"
    ),
    tensor_fp8_flops_per_s=array_rate(_CORES, _TENSOR_HZ, 1, f"cFP8, as BF16 ({_TRAINIUM})"),
    vector_flops_per_s=Figure(_CORES * 2.3e12, "FLOP/s", f"{_CORE}: 2.3 FP32 TFLOPS x 2 cores"),
    scalar_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    gpsimd_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    collective_cores=Figure(6, "cores", _NKI),
    sbuf_bytes=Figure(48 * MIB, "bytes", f"{_NKI}: 24 MiB x 2 cores"),
    psum_bytes=Figure(4 * MIB, "bytes", f"{_NKI}: 2 MiB x 2 cores"),
    link_tray_bytes_per_s=Figure(
        192 * GB, "bytes/s", f"arithmetic: 384 GB/s of 4 NeuronLink-v2 / 2 directions ({_TRAINIUM})"
    ),
    scale_out_bytes_per_s=Figure(
        50 * GB / BITS_PER_BYTE,
        "bytes/s",
        f"arithmetic: 800 Gb/s of EFA over 16 chips ({SDK}, trn1-arch.rst); trn1n has twice "
        "as much",
    ),
    microcode_bytes_per_core=MICROCODE,
    idle_watts=Figure(60, "W", "assumed: unpublished; a quarter of the budget, as GPUs of 2020"),
    budget_watts=Figure(
        _BUDGET_WATTS,
        "W",
        "assumed: unpublished; 190 BF16 TFLOPS at the 400 W / 312 TFLOPS of an A100, which "
        "is of the same years",
    ),
)

TRAINIUM1: Final = _with_switches(_BASE, _TRAINIUM)

INFERENTIA2: Final = _with_switches(
    replace(
        _BASE,
        name="inferentia2",
        cores=Figure(_CORES, "cores", _INFERENTIA2),
        hbm_stack_bytes=Figure(16 * GIB, "bytes", f"{_INFERENTIA2}: 32 GiB / 2"),
        hbm_bytes_per_s=Figure(820 * GIB, "bytes/s", f"{_INFERENTIA2}: 820 GiB/s"),
        link_tray_bytes_per_s=Figure(
            96 * GIB,
            "bytes/s",
            f"arithmetic: 192 GiB/s of 2 NeuronLink-v2 / 2 directions ({SDK}, inf2-arch.rst)",
        ),
        scale_out_bytes_per_s=None,
    ),
    _INFERENTIA2,
)
