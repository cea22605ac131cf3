"""Chips that the catalog shows and cannot time: Inferentia1, Trainium4, MI455X and TPU7x."""

from typing import Final

from emulator.specs.catalog.gpu import tflops
from emulator.specs.catalog.neuron_core import SDK
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import Figure
from emulator.units import GB, GIB

_INFERENTIA1: Final = f"{SDK}, neuron-hardware/inferentia.rst"
_CORE_V1: Final = f"{SDK}, neuron-hardware/neuron-core-v1.rst"
_KEYNOTE: Final = "Garman, re:Invent 2025 keynote"
_SEMIANALYSIS: Final = "SemiAnalysis, AWS Trainium3 Deep Dive"
_MI400: Final = "AMD Financial Analyst Day 2025, by hothardware.com on MI400 and awesomeagents.ai"
_TPU7X: Final = "Google Cloud TPU docs, TPU7x (Ironwood)"


def _rate(gb_per_s: float, source: str) -> Figure:
    return Figure(gb_per_s * GB, "bytes/s", source)


INFERENTIA1: Final = DataSheet(
    name="inferentia1",
    maker="AWS",
    known=(
        ("cores", Figure(4, "cores", f"{_INFERENTIA1}: NeuronCore-v1")),
        ("hbm_bytes", Figure(8 * GIB, "bytes", f"{_INFERENTIA1}: DRAM")),
        ("hbm_bytes_per_s", Figure(50 * GIB, "bytes/s", f"{_INFERENTIA1}: 50 GiB/s")),
        ("tensor_bf16_flops_per_s", tflops(64, f"{_INFERENTIA1}: FP16 and BF16")),
        ("tensor_int8_ops_per_s", Figure(128e12, "op/s", f"{_INFERENTIA1}: 128 INT8 TOPS")),
        ("vector_flops_per_cycle", Figure(4 * 256, "FLOP/cycle", f"{_CORE_V1}: 256 x 4 cores")),
        ("scalar_flops_per_cycle", Figure(4 * 512, "FLOP/cycle", f"{_CORE_V1}: 512 x 4 cores")),
        (
            "link_tray_bytes_per_s",
            Figure(
                16 * GIB, "bytes/s", f"arithmetic: 32 GiB/s / 2 directions ({SDK}, inf1-arch.rst)"
            ),
        ),
    ),
    unknown=(
        "tensor_fp32_flops_per_s",
        "clocks",
        "sbuf_bytes",
        "dma_bytes_per_s",
        "idle_watts",
        "budget_watts",
    ),
)

TRAINIUM4: Final = DataSheet(
    name="trainium4",
    maker="AWS",
    announced=True,
    known=(
        ("hbm_stacks", Figure(8, "stacks", f"{_SEMIANALYSIS}: HBM4")),
        (
            "hbm_bytes",
            Figure(
                2 * 144 * GIB,
                "bytes",
                f"arithmetic: twice Trainium3 ({_KEYNOTE}); in round figures 288 GB",
            ),
        ),
        ("hbm_bytes_per_s", _rate(19_600, f"arithmetic: four times Trainium3 ({_KEYNOTE})")),
        (
            "tensor_fp8_flops_per_s",
            tflops(3 * 2_517, "arithmetic: three times Trainium3 (press, unverified)"),
        ),
        (
            "tensor_fp4_flops_per_s",
            tflops(6 * 2_517, f"arithmetic: six times Trainium3's FP4 ({_KEYNOTE})"),
        ),
    ),
    unknown=(
        "cores",
        "tensor_bf16_flops_per_s",
        "tensor_fp32_flops_per_s",
        "tensor_sparse_flops_per_s",
        "vector_flops_per_s",
        "scalar_ops_per_s",
        "dma_bytes_per_s",
        "sbuf_bytes",
        "link_tray_bytes_per_s",
        "scale_out_bytes_per_s",
        "idle_watts",
        "budget_watts",
        "delivery date",
    ),
)

MI455X: Final = DataSheet(
    name="mi455x",
    aliases=("mi450x",),
    maker="AMD",
    announced=True,
    known=(
        ("hbm_stacks", Figure(12, "stacks", f"{_MI400}; one text says 16")),
        ("hbm_bytes", Figure(432 * GIB, "bytes", f"{_MI400}: HBM4, GB read as GiB")),
        ("hbm_bytes_per_s", _rate(19_600, _MI400)),
        (
            "tensor_fp8_flops_per_s",
            tflops(20_000, f"{_MI400}: a projection, dense or sparse not said"),
        ),
        (
            "tensor_fp4_flops_per_s",
            tflops(40_000, f"{_MI400}: a projection, dense or sparse not said"),
        ),
        (
            "link_tray_bytes_per_s",
            _rate(1_800, f"arithmetic: 3.6 TB/s / 2 directions, among 72 chips ({_MI400})"),
        ),
        ("scale_out_bytes_per_s", _rate(300, _MI400)),
    ),
    unknown=(
        "cores",
        "tensor_bf16_flops_per_s",
        "tensor_fp32_flops_per_s",
        "vector_flops_per_s",
        "scalar_ops_per_s",
        "sbuf_bytes",
        "idle_watts",
        "budget_watts",
    ),
)

TPU_V7: Final = DataSheet(
    name="tpu-v7",
    aliases=("tpuv7", "tpu7x", "ironwood"),
    maker="Google",
    known=(
        ("cores", Figure(2, "cores", f"{_TPU7X}: TensorCores; 4 SparseCores")),
        ("hbm_bytes", Figure(192 * GIB, "bytes", _TPU7X)),
        ("hbm_bytes_per_s", _rate(7_380, f"{_TPU7X}: 7,380 GB/s")),
        ("tensor_bf16_flops_per_s", tflops(2_307, _TPU7X)),
        ("tensor_fp8_flops_per_s", tflops(4_614, _TPU7X)),
        (
            "link_tray_bytes_per_s",
            _rate(600, f"arithmetic: 1,200 GB/s / 2 directions, in a 3D torus ({_TPU7X})"),
        ),
        ("pod_chips", Figure(9_216, "chips", _TPU7X)),
    ),
    unknown=(
        "tensor_fp32_flops_per_s",
        "vector_flops_per_s",
        "scalar_ops_per_s",
        "clocks",
        "sbuf_bytes",
        "scale_out_bytes_per_s",
        "idle_watts",
        "budget_watts",
    ),
)
