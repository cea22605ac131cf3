"""Trainium3: the chip's figures and where each comes from.

Where sources disagree the figure says which reading it takes and names the other. Nobody has
published a thermal design power, idle power, or per-hop latency.
"""

from typing import Final

from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure
from emulator.units import BITS_PER_BYTE, GB, GIB, MB, MIB

_ARCH: Final = "AWS Neuron SDK docs, neuron-hardware/trainium3.rst"
_CORE: Final = "AWS Neuron SDK docs, neuron-hardware/neuron-core-v4.rst"
_NKI: Final = "AWS Neuron SDK docs, nki/guides/architecture/trainium3_arch.rst"
_DMA: Final = "AWS Neuron SDK docs, nki-dma-bandwidth-guide.rst"
_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"

_CORES: Final = 8
_TENSOR_HZ: Final = 2.4e9
_ELEMENTWISE_HZ: Final = 1.2e9
_FLOPS_PER_MAC: Final = 2
_BF16_FLOPS_PER_S: Final = _CORES * 128 * 128 * _FLOPS_PER_MAC * _TENSOR_HZ
_LANE_BYTES_PER_S: Final = 8 * GB  # PCIe 6, 64 Gb/s each way

TRAINIUM3: Final = ChipSpec(
    name="trainium3",
    neuron_cores=Figure(value=_CORES, unit="cores", source=_ARCH),
    lnc_sizes=(1, 2, 8),
    default_lnc=Figure(
        value=2,
        unit="cores per logical core",
        source="AWS Neuron SDK docs, logical-neuroncore-config.rst (1 and 2 are supported; 8 is "
        "announced, not released)",
    ),
    hbm_stacks=Figure(value=4, unit="stacks", source=_ARCH),
    hbm_stack_bytes=Figure(
        value=36 * GIB,
        unit="bytes",
        source="AWS Neuron driver, neuron_dhal_v4.c: 0x900000000 = 36 GiB (the docs' 144 GiB / 4)",
    ),
    hbm_bytes_per_s=Figure(
        value=4.9e12,
        unit="bytes/s",
        source=f"{_ARCH} (4 x 1,024 bit x 9.6 Gb/s); trainium3_arch.rst says 4.7 TB/s (9.2 Gb/s)",
    ),
    dma_bytes_per_s=Figure(
        value=_CORES * 16 * 33 * GB,
        unit="bytes/s",
        source=f"{_DMA}: 33 B/ns achievable x 16 engines x 8 cores; below the HBM figure",
    ),
    dma_start_ns=Figure(value=1_300, unit="ns", source=f"{_DMA}: semaphore to start of transfer"),
    tensor_fp32_flops_per_s=Figure(
        value=_BF16_FLOPS_PER_S / 4,
        unit="FLOP/s",
        source=f"arithmetic: a quarter of the BF16 rate ({_NKI}); the spec page says 183 TFLOPS",
    ),
    tensor_bf16_flops_per_s=Figure(
        value=_BF16_FLOPS_PER_S,
        unit="FLOP/s",
        source=f"arithmetic: 8 cores x 128 x 128 MAC x 2 x 2.4 GHz ({_NKI}); the spec page says "
        "671 TFLOPS",
    ),
    tensor_mxfp8_flops_per_s=Figure(
        value=_BF16_FLOPS_PER_S * 4,
        unit="FLOP/s",
        source=f"arithmetic: four times the BF16 rate ({_NKI})",
    ),
    tensor_mxfp4_flops_per_s=Figure(
        value=_BF16_FLOPS_PER_S * 4,
        unit="FLOP/s",
        source=f"{_ARCH}: MXFP4 is turned into MXFP8 before the array",
    ),
    vector_flops_per_s=Figure(
        value=_CORES * 1.2e12, unit="FLOP/s", source=f"{_CORE}: 1.2 FP32 TFLOPS x 8 cores"
    ),
    scalar_ops_per_s=Figure(
        value=_CORES * 128 * _ELEMENTWISE_HZ,
        unit="op/s",
        source=f"arithmetic: 8 cores x 128 FP32 elements per cycle x 1.2 GHz ({_NKI})",
    ),
    sbuf_bytes=Figure(value=256 * MIB, unit="bytes", source=f"{_NKI}: 32 MiB x 8 cores"),
    link_tray_bytes_per_s=Figure(
        value=64 * _LANE_BYTES_PER_S,
        unit="bytes/s",
        source=f"arithmetic: 64 board lanes ({_SEMIANALYSIS}) x 8 GB/s per direction; "
        "trn3-arch.rst's text says 256 GB/s",
    ),
    link_backplane_bytes_per_s=Figure(
        value=64 * _LANE_BYTES_PER_S,
        unit="bytes/s",
        source=f"arithmetic: 64 active of 80 backplane lanes ({_SEMIANALYSIS}) x 8 GB/s per "
        "direction; trn3-arch.rst's text says 320 GB/s",
    ),
    link_cross_rack_bytes_per_s=Figure(
        value=16 * _LANE_BYTES_PER_S,
        unit="bytes/s",
        source=f"arithmetic: 16 lanes ({_SEMIANALYSIS}) x 8 GB/s per direction; trn3-arch.rst "
        "agrees: 128 GB/s",
    ),
    scale_out_bytes_per_s=Figure(
        value=200 * GB / BITS_PER_BYTE,
        unit="bytes/s",
        source="arithmetic: 28,800 Gb/s of EFA over 144 chips (AWS Neuron SDK docs, trn3-arch.rst)",
    ),
    microcode_bytes_per_core=Figure(
        value=96 * MB,
        unit="bytes",
        source="AWS Neuron SDK docs, neuron-runtime/explore/device-memory.rst, per physical core",
    ),
    idle_watts=Figure(
        value=200,
        unit="W",
        source="assumed: unpublished; a tenth of the budget for leakage and HBM refresh, as GPUs "
        "of this class idle, plus 160 always-on lanes x 128 Gb/s x about 5 pJ/bit = 100 W",
    ),
    budget_watts=Figure(
        value=1_000,
        unit="W",
        source=f"{_SEMIANALYSIS}: about 1,000 W; AWS publishes none, Epoch AI says 700 W",
    ),
)
