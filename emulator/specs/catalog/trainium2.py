"""Trainium2: eight NeuronCore-v3, with links for a torus of two dimensions or three.

Its rates are the arrays' own, comparable with Trainium3's; a switch takes those of the chip's page,
the basis of its systems' published totals.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.assumptions import Assumption, assumption_set
from emulator.specs.catalog.neuron_core import (
    DMA_START,
    LAUNCH,
    MICROCODE,
    SATURATING,
    SDK,
    SPARSE,
    array,
    array_rate,
    dma_rate,
    elementwise_rate,
    printed_rate,
)
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import BITS_PER_BYTE, GB, GIB, MIB

_ARCH: Final = f"{SDK}, neuron-hardware/trainium2.rst"
_CORE: Final = f"{SDK}, neuron-hardware/neuron-core-v3.rst"
_NKI: Final = f"{SDK}, nki/guides/architecture/trainium2_arch.rst"
_SERVERS: Final = f"{SDK}, neuron-hardware/trn2-arch.rst"

_CORES: Final = 8
_TENSOR_HZ: Final = 2.4e9
_ELEMENTWISE_HZ: Final = 1.2e9


_BASE: Final = ChipSpec(
    name="trainium2",
    maker="AWS",
    cores=Figure(_CORES, "cores", _ARCH),
    lnc_sizes=(1, 2),
    default_lnc=Figure(
        2, "cores per logical core", f"{SDK}, logical-neuroncore-config.rst (1 and 2 are supported)"
    ),
    hbm_stacks=Figure(4, "stacks", _NKI),
    hbm_stack_bytes=Figure(24 * GIB, "bytes", f"{_ARCH}: 96 GiB / 4"),
    hbm_bytes_per_s=Figure(2.9e12, "bytes/s", f"{_ARCH}; trainium2_arch.rst says 3 TB/s"),
    dma_bytes_per_s=dma_rate(_CORES, 23),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    dma_engines=Figure(128, "engines", f"{_NKI}: 16 per core"),
    launch_ns=LAUNCH,
    matrix=array(
        clock_hz=_TENSOR_HZ,
        mx_rows=256,
        mx_source=f"{_NKI}: presents 256 x 128 for FP8 at twice the rate; it has no "
        "block-scaled format",
        source=_NKI,
        ramps=True,
    ),
    tensor_fp32_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1 / 4, f"a quarter of BF16 ({_NKI}); the spec page says 181 TFLOPS"
    ),
    tensor_bf16_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1, f"79 TFLOPS a core ({_CORE}); the spec page says 667 TFLOPS"
    ),
    tensor_fp8_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 2, f"158 TFLOPS a core ({_CORE}); the spec page says 1,299 TFLOPS"
    ),
    tensor_sparse_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 4, f"FP8 and {SPARSE} ({_CORE}); the spec page says 2,563 TFLOPS"
    ),
    vector_flops_per_s=Figure(
        _CORES * 1.2e12 * 0.96 / 1.2,
        "FLOP/s",
        "arithmetic: NeuronCore-v4's 1.2 FP32 TFLOPS at 1.2 GHz, at this one's 0.96 GHz "
        f"({_NKI}) x 8 cores",
    ),
    scalar_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    gpsimd_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    collective_cores=Figure(16, "cores", f"{_ARCH}; {_NKI.rsplit('/', 1)[-1]} says 20"),
    sbuf_bytes=Figure(224 * MIB, "bytes", f"{_ARCH}: 28 MiB x 8 cores"),
    psum_bytes=Figure(16 * MIB, "bytes", f"{_NKI}: 2 MiB x 8 cores"),
    link_tray_bytes_per_s=Figure(
        512 * GB,
        "bytes/s",
        f"arithmetic: 1,024 GB/s of the 4 links inside an instance / 2 directions ({_SERVERS})",
    ),
    link_cross_rack_bytes_per_s=Figure(
        128 * GB,
        "bytes/s",
        f"arithmetic: 256 GB/s of the 2 links to other instances / 2 directions ({_SERVERS})",
    ),
    scale_out_bytes_per_s=Figure(
        200 * GB / BITS_PER_BYTE,
        "bytes/s",
        f"arithmetic: 3,200 Gb/s of EFA over 16 chips ({_SERVERS})",
    ),
    microcode_bytes_per_core=MICROCODE,
    idle_watts=Figure(
        110,
        "W",
        "assumed: unpublished; a tenth of the budget for leakage and HBM refresh, plus "
        "1,280 GB/s of always-on lanes at about 5 pJ/bit = 51 W",
    ),
    budget_watts=Figure(500, "W", "SemiAnalysis, Trainium2, and Epoch AI: about 500 W"),
)

_SPEC_PAGE: Final = Assumption(
    "spec",
    f"{_ARCH}: more than eight of its own cores have",
    {
        "tensor_fp32_flops_per_s": printed_rate(_ARCH, 181),
        "tensor_bf16_flops_per_s": printed_rate(_ARCH, 667),
        "tensor_fp8_flops_per_s": printed_rate(_ARCH, 1_299),
        "tensor_sparse_flops_per_s": printed_rate(_ARCH, 2_563),
    },
)

TRAINIUM2: Final = replace(
    _BASE,
    switches=(
        assumption_set(
            _BASE,
            "tensor",
            _SPEC_PAGE,
            default="array",
            why="the arithmetic of the array at its clock",
        ),
        assumption_set(
            _BASE,
            "hbm",
            Assumption(
                "nki", "the NKI guide", {"hbm_bytes_per_s": Figure(3.0e12, "bytes/s", _NKI)}
            ),
            default="spec",
            why="the architecture page",
        ),
        assumption_set(
            _BASE,
            "dma",
            Assumption(
                "spec",
                "more than HBM delivers",
                {"dma_bytes_per_s": Figure(3.5e12, "bytes/s", f"{_ARCH}: 3.5 TB/s of DMA")},
            ),
            default="achievable",
            why="what the engines reach",
        ),
        assumption_set(
            _BASE,
            "collective-cores",
            Assumption("20", "the NKI guide", {"collective_cores": Figure(20, "cores", _NKI)}),
            default="16",
            why="the architecture page",
        ),
    ),
)
