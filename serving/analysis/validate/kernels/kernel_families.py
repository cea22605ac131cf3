"""Families of kernels: their tables, laws, priors of constants, and the bar for their errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from emulator.timing.laws.shipped_laws import LAWS
from serving.analysis.validate.kernels import kernel_tables
from serving.analysis.validate.kernels.law_fit import ConstantPrior, KernelRows

# Levels are kernels of a stack by format ("kernel"), and as compiled for a generation of chips
# ("compiled"). No constant is one machine's own: with such factors, machines that were left out
# were predicted no better (attention, products, experts) or worse (collectives, 12.7 % for 10.8).
_START: Final = {"kernel": 1.0, "compiled": 0.5}
_SHARE: Final = {"kernel": 0.4, "compiled": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFamily:
    """`bar`: the aim for the median error of a machine that was left out."""

    name: str
    read: Callable[[Path], KernelRows]
    law: type[Any]
    priors: tuple[ConstantPrior, ...]
    bar: float


def _prior(
    name: str,
    unit: str,
    usual: float,
    bounds: tuple[float, float],
    levels: Mapping[str, float] | None = None,
    *,
    spread: float = 1.5,
) -> ConstantPrior:
    return ConstantPrior(
        name=name,
        unit=unit,
        usual=usual,
        least=bounds[0],
        most=bounds[1],
        spread=spread,
        levels=levels or {},
    )


def _near(core_bytes: float) -> ConstantPrior:
    """An SM of a GPU loads 64 bytes a cycle from L2, about 110 a ns, and half of it in practice."""
    return _prior("near_bytes", "bytes/ns/core", core_bytes, (5, 100))


def _copies(usual: float) -> ConstantPrior:
    return _prior("copies", "weights", usual, (0.1, 20))


_PRODUCTS: Final = (
    _prior("start_ns", "ns", 2e3, (100, 1e5), {"kernel": 0.7, "compiled": 0.5}),
    _prior("quantise_ns", "ns", 5e3, (100, 1e5), {"kernel": 1.0, "compiled": 0.5}),
    _prior(
        "tensor_share",
        "of peak",
        0.7,
        (0.2, 1),
        {"format": 0.3, "kernel": 0.2, "compiled": 0.2},
    ),
    _prior("memory_share", "of peak", 0.8, (0.2, 1), {"format": 0.2, "kernel": 0.1}),
    _prior("edge", "x", 0.3, (1e-3, 5)),
    _prior("wave", "of a wave", 0.3, (0.02, 1)),
    _prior("split_ns", "ns", 2e3, (10, 2e4)),
    _prior("streams", "x", 4, (1, 20)),
    _prior("overlap", "1", 3, (1, 8)),
    _copies(4.5),
    _near(25),
)

_DECODE: Final = (
    _prior("start_ns", "ns", 1e4, (1e3, 1e6), _START),
    _prior("memory_share", "of peak", 0.75, (0.02, 1), {**_SHARE, "compiled": 0.5}),
    _prior("tensor_share", "of peak", 0.4, (0.01, 1), {**_SHARE, "compiled": 0.5}),
    _prior("query_rows", "rows", 16, (1, 128), {"compiled": 0.7}),
    _prior("chunk_tokens", "tokens", 128, (8, 4096), {"compiled": 0.7}),
    _prior("reread", "of the cache", 0.01, (1e-4, 1), {"compiled": 2.0}),
    _prior("wave_ns", "ns", 1e3, (1, 2e4), {"compiled": 0.7}),
    _prior("combine_ns", "ns", 3e3, (10, 5e4), {"compiled": 0.7}),
    _prior("overlap", "1", 2, (1, 8)),
    _copies(1.5),
    _near(40),
)

_PREFILL: Final = (
    _prior("start_ns", "ns", 1e4, (1e3, 1e6), _START),
    _prior("tensor_share", "of peak", 0.5, (0.02, 1), _SHARE),
    _prior("softmax_share", "of peak", 0.8, (0.1, 2)),
    _prior("diagonal_tokens", "tokens", 128, (1, 1000)),
    _prior("tail", "of a row", 0.5, (0.01, 1.5)),
    _prior("tile_ns", "ns", 500, (1, 2e4), {"compiled": 0.7}),
    _prior("memory_share", "of peak", 0.6, (0.02, 1), _SHARE),
    _near(40),
)

_EXPERTS: Final = (
    _prior("start_ns", "ns", 2e4, (2e3, 1e6), {"kernel": 0.7, "compiled": 0.5}),
    _prior("expert_ns", "ns", 20, (0.1, 1e3), {"source": 0.5}),
    _prior("skew", "1", 0.8, (0.1, 1.2), {"source": 0.2}),
    _prior("unrouted", "of the rows", 0.1, (1e-3, 1), {"source": 1.0}),
    _prior("tensor_share", "of peak", 0.5, (0.02, 1), _SHARE),
    _prior("memory_share", "of peak", 0.7, (0.05, 1), {"kernel": 0.3, "compiled": 0.3}),
    _prior("edge", "x", 0.3, (0.01, 5), {"source": 0.5}),
    _prior("rows_share", "of peak", 0.5, (0.02, 1), {"kernel": 0.5, "compiled": 0.3}),
    _near(30),
    _copies(2),
    _prior("overlap", "1", 2, (1, 8)),
)

_COLLECTIVES: Final = (
    _prior("start_ns", "ns", 5e3, (500, 1e6), {"kernel": 0.7, "compiled": 0.4}),
    _prior("doubling_ns", "ns", 1e3, (10, 2e4), {"kernel": 0.5, "compiled": 0.3}),
    _prior("flag_share", "of peak", 0.3, (0.01, 1), {"kernel": 0.4, "compiled": 0.2}),
    # Links between GPUs alone are its base; one machine on PCIe, through hosts, is not averaged in.
    _prior(
        "link_share",
        "of peak",
        0.7,
        (0.05, 1),
        {"kernel": 0.2, "fabric": 1.0},
        spread=0.1,
    ),
    _prior("synchronise_ns", "ns", 5e3, (10, 1e5), {"kernel": 0.5, "compiled": 0.3}),
)

_READERS: Final[
    Mapping[str, tuple[Callable[[Path], KernelRows], tuple[ConstantPrior, ...], float]]
] = {
    "GEMM": (kernel_tables.products, _PRODUCTS, 0.15),
    "MLA decode": (kernel_tables.decode_mla, _DECODE, 0.15),
    "GQA decode": (kernel_tables.decode_gqa, _DECODE, 0.15),
    "MLA prefill": (kernel_tables.prefill_mla, _PREFILL, 0.15),
    "GQA prefill": (kernel_tables.prefill_gqa, _PREFILL, 0.15),
    "MoE": (kernel_tables.experts, _EXPERTS, 0.20),
    "collectives": (kernel_tables.collectives, _COLLECTIVES, 0.20),
}
FAMILIES: Final = tuple(
    KernelFamily(name=name, read=read, law=LAWS[name], priors=priors, bar=bar)
    for name, (read, priors, bar) in _READERS.items()
)
