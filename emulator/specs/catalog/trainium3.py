"""Trainium3: the chip's figures and their sources.

Where sources disagree the figure names its own, and a switch takes another. Unpublished: thermal
design power, idle power, per-hop latency.
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

_ARCH: Final = f"{SDK}, neuron-hardware/trainium3.rst"
_CORE: Final = f"{SDK}, neuron-hardware/neuron-core-v4.rst"
_NKI: Final = f"{SDK}, nki/guides/architecture/trainium3_arch.rst"
_SERVERS: Final = f"{SDK}, neuron-hardware/trn3-arch.rst"
_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"

_CORES: Final = 8
_TENSOR_HZ: Final = 2.4e9
_ELEMENTWISE_HZ: Final = 1.2e9
_LANE_BYTES_PER_S: Final = 8 * GB  # PCIe 6, 64 Gb/s each way


def _link(lanes: int, words: str) -> Figure:
    return Figure(
        lanes * _LANE_BYTES_PER_S,
        "bytes/s",
        f"arithmetic: {lanes} {words} ({_SEMIANALYSIS}) x 8 GB/s per direction",
    )


def _in_text(gb_per_s: int) -> Figure:
    return Figure(gb_per_s * GB, "bytes/s", f"{_SERVERS}: {gb_per_s} GB/s in its text")


_BASE: Final = ChipSpec(
    name="trainium3",
    maker="AWS",
    cores=Figure(_CORES, "cores", _ARCH),
    lnc_sizes=(1, 2, 8),
    default_lnc=Figure(
        2,
        "cores per logical core",
        f"{SDK}, logical-neuroncore-config.rst (1 and 2 are supported; 8 is announced, not "
        "released)",
    ),
    hbm_stacks=Figure(4, "stacks", _ARCH),
    hbm_stack_bytes=Figure(
        36 * GIB,
        "bytes",
        "AWS Neuron driver, neuron_dhal_v4.c: 0x900000000 = 36 GiB (the docs' 144 GiB / 4)",
    ),
    hbm_bytes_per_s=Figure(
        4.9e12,
        "bytes/s",
        f"{_ARCH} (4 x 1,024 bit x 9.6 Gb/s); trainium3_arch.rst says 4.7 TB/s (9.2 Gb/s)",
    ),
    dma_bytes_per_s=dma_rate(_CORES, 33),
    dma_start_ns=DMA_START,
    dma_saturating_bytes=SATURATING,
    dma_engines=Figure(128, "engines", f"{_NKI}: 16 per core"),
    launch_ns=LAUNCH,
    matrix=array(
        clock_hz=_TENSOR_HZ,
        mx_rows=512,
        mx_source=f"{_NKI}: presents 512 x 128 for MX",
        source=_NKI,
        ramps=True,
    ),
    tensor_fp32_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1 / 4, f"a quarter of BF16 ({_NKI}); the spec page says 183 TFLOPS"
    ),
    tensor_bf16_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 1, f"({_NKI}); the spec page says 671 TFLOPS"
    ),
    tensor_fp8_flops_per_s=array_rate(_CORES, _TENSOR_HZ, 4, f"MXFP8, four times BF16 ({_NKI})"),
    tensor_fp4_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 4, f"MXFP4 is turned into MXFP8 before the array ({_ARCH})"
    ),
    tensor_sparse_flops_per_s=array_rate(
        _CORES, _TENSOR_HZ, 4, f"{SPARSE} ({_NKI}); SemiAnalysis' sparse MXFP8 is not in AWS's docs"
    ),
    vector_flops_per_s=Figure(_CORES * 1.2e12, "FLOP/s", f"{_CORE}: 1.2 FP32 TFLOPS x 8 cores"),
    scalar_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    gpsimd_ops_per_s=elementwise_rate(_CORES, _ELEMENTWISE_HZ, _NKI),
    collective_cores=Figure(16, "cores", f"{_ARCH} and driver; {_NKI.rsplit('/', 1)[-1]} says 20"),
    sbuf_bytes=Figure(256 * MIB, "bytes", f"{_NKI}: 32 MiB x 8 cores"),
    psum_bytes=Figure(16 * MIB, "bytes", f"{_NKI}: 2 MiB x 8 cores"),
    link_tray_bytes_per_s=_link(64, "board lanes"),
    link_backplane_bytes_per_s=_link(64, "active of 80 backplane lanes"),
    link_cross_rack_bytes_per_s=_link(16, "lanes to the other rack"),
    scale_out_bytes_per_s=Figure(
        200 * GB / BITS_PER_BYTE,
        "bytes/s",
        f"arithmetic: 28,800 Gb/s of EFA over 144 chips, 12,800 over 64 ({_SERVERS})",
    ),
    microcode_bytes_per_core=MICROCODE,
    idle_watts=Figure(
        200,
        "W",
        "assumed: unpublished; a tenth of the budget for leakage and HBM refresh, as GPUs "
        "of this class idle, plus 160 always-on lanes x 128 Gb/s x about 5 pJ/bit = 100 W",
    ),
    budget_watts=Figure(
        1_000, "W", f"{_SEMIANALYSIS}: about 1,000 W; AWS publishes none, Epoch AI says 700 W"
    ),
)

_AS_IN_TEXT: Final = Assumption(
    "aws_text",
    f"{_SERVERS} in its text: 32, 40 and 16 lanes, half of those that others count",
    {
        "link_tray_bytes_per_s": _in_text(256),
        "link_backplane_bytes_per_s": _in_text(320),
        "link_cross_rack_bytes_per_s": _in_text(128),
    },
)
_NARROW: Final = Assumption(
    "tenth",
    f"{_SEMIANALYSIS} in its text: to the other rack less than 10 % of what there is in a rack",
    {
        "link_tray_bytes_per_s": _link(64, "board lanes"),
        "link_backplane_bytes_per_s": _link(64, "active of 80 backplane lanes"),
        "link_cross_rack_bytes_per_s": Figure(
            0.1 * 64 * _LANE_BYTES_PER_S,
            "bytes/s",
            f"arithmetic: 10 % of 64 active backplane lanes ({_SEMIANALYSIS}), an upper "
            "bound; its lane counts make 25 %",
        ),
    },
)
_ALL_LANES: Final = Assumption(
    "headline",
    "2,560 GB/s both ways: the lanes to spare carry traffic too",
    {
        "link_tray_bytes_per_s": _link(64, "board lanes"),
        "link_backplane_bytes_per_s": _link(80, "backplane lanes, with the 16 to spare"),
        "link_cross_rack_bytes_per_s": _link(16, "lanes to the other rack"),
    },
)
_SPEC_PAGE: Final = Assumption(
    "spec",
    f"{_ARCH}: more than eight of its own cores have",
    {
        "tensor_fp32_flops_per_s": printed_rate(_ARCH, 183),
        "tensor_bf16_flops_per_s": printed_rate(_ARCH, 671),
        "tensor_fp8_flops_per_s": printed_rate(_ARCH, 2_517),
        "tensor_fp4_flops_per_s": printed_rate(_ARCH, 2_517),
        "tensor_sparse_flops_per_s": printed_rate(_ARCH, 2_517),
    },
)

TRAINIUM3: Final = replace(
    _BASE,
    switches=(
        assumption_set(
            _BASE,
            "links",
            _AS_IN_TEXT,
            _ALL_LANES,
            _NARROW,
            default="lanes",
            why="144 active PCIe 6 lanes; the 128 of a rack make the 2,048 GB/s of AWS's table",
        ),
        assumption_set(
            _BASE,
            "hbm",
            Assumption(
                "nki", "9.2 Gb/s a pin", {"hbm_bytes_per_s": Figure(4.7e12, "bytes/s", _NKI)}
            ),
            default="spec",
            why="9.6 Gb/s a pin",
        ),
        assumption_set(
            _BASE,
            "dma",
            Assumption(
                "spec",
                "as fast as HBM",
                {"dma_bytes_per_s": Figure(4.9e12, "bytes/s", f"{_ARCH}: 4.9 TB/s of DMA")},
            ),
            default="achievable",
            why="what the engines reach; slower than HBM, so it bounds what streams",
        ),
        assumption_set(
            _BASE,
            "tensor",
            _SPEC_PAGE,
            default="array",
            why="the arithmetic of the array at its clock",
        ),
        assumption_set(
            _BASE,
            "collective-cores",
            Assumption("20", "the NKI guide", {"collective_cores": Figure(20, "cores", _NKI)}),
            default="16",
            why="the architecture page and the driver",
        ),
        assumption_set(
            _BASE,
            "network",
            Assumption(
                "400",
                "the other way to build it: a card for each chip",
                {
                    "scale_out_bytes_per_s": Figure(
                        400 * GB / BITS_PER_BYTE, "bytes/s", f"{_SEMIANALYSIS}: 400 Gb/s a chip"
                    )
                },
            ),
            default="200",
            why="one network card of 2 x 200 Gb/s for two chips, as nearly everywhere",
        ),
        assumption_set(
            _BASE,
            "budget",
            Assumption(
                "epoch",
                "700 W, which fits the launch talk's rack better",
                {"budget_watts": Figure(700, "W", "Epoch AI")},
            ),
            default="semianalysis",
            why="about 1,000 W",
        ),
    ),
)
