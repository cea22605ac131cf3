"""The tables of a folder of kernels as rows of each family.

Tables as aiconfigurator ships them: GEMM, attention (`generation_*` decode, `context_*` prefill;
the context of a decode is `isl` + `step` tokens), MoE, all-reduce and NCCL. Times are milliseconds.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from emulator.arrays import Float64s
from emulator.errors import ConfigError
from emulator.timing.laws.collective_law import CollectiveShape
from emulator.timing.laws.decode_attention_law import DecodeAttentionShape
from emulator.timing.laws.expert_law import ExpertShape
from emulator.timing.laws.prefill_attention_law import PrefillAttentionShape
from emulator.timing.laws.product_law import ProductShape
from emulator.timing.product_rate import ProductRate
from serving.analysis.validate.kernels.kernel_columns import KernelColumns, joined, read_columns
from serving.analysis.validate.kernels.kernel_machines import (
    MACHINES,
    fabrics,
    generations,
    silicon_of,
)
from serving.analysis.validate.kernels.law_fit import KernelRows, Strings

NS_PER_MS: Final = 1e6
LATENT_WIDTH: Final = 512 + 64  # of DeepSeek's cached latent and its rope
LATENT_VALUES: Final = 512
PROMPT_WIDTH: Final = 192 + 128  # of DeepSeek's keys and values, when expanded

# Bytes of a stored element and the rate of its products. Block scales are a byte for 16 elements in
# NVFP4, for 32 in MXFP4; four bits alone (a16, weight only) are multiplied in 16 bits.
FORMATS: Final = {
    "bfloat16": (2.0, ProductRate.PLAIN),
    "fp8": (1.0, ProductRate.FP8),
    "fp8_static": (1.0, ProductRate.FP8),
    "fp8_block": (1.0, ProductRate.FP8),
    "int8_wo": (1.0, ProductRate.PLAIN),
    "nvfp4": (0.5625, ProductRate.FP4),
    "int4_wo": (0.53125, ProductRate.PLAIN),
    "w4afp8": (0.53125, ProductRate.FP8),
    "w4a16_mxfp4": (0.53125, ProductRate.PLAIN),
    "w4a8_mxfp4_mxfp8": (0.53125, ProductRate.FP8),
}
CACHED: Final = {"bfloat16": 2.0, "float16": 2.0, "fp8": 1.0}
"""Bytes of a value of KV; of queries too."""
SENT: Final = {"bfloat16": 2.0, "half": 2.0, "int8": 1.0}
"""Bytes of an element of a collective."""

Table = Callable[[Path], KernelRows]


def products(folder: Path) -> KernelRows:
    """gemm.csv."""
    table = _read(folder / "gemm.csv", gemm_dtype=FORMATS)
    stored, rates = _formats(table.text("gemm_dtype"))
    quantised = np.array([rate.quantised for rate in rates], dtype=float)
    shape = ProductShape(
        rows=table.number("m"),
        outputs=table.number("n"),
        inputs=table.number("k"),
        element_bytes=stored,
        quantised=quantised,
    )
    return _rows(table, shape, rates, form=table.text("gemm_dtype"))


def decode_mla(folder: Path) -> KernelRows:
    """generation_mla.csv: absorbed queries on a latent, in 8 bits where it is cached in 8."""
    table = _read(folder / "generation_mla.csv", kv_cache_dtype=CACHED)
    narrow = table.text("kv_cache_dtype") == "fp8"
    ones = np.ones(len(table))
    shape = DecodeAttentionShape(
        requests=table.number("batch_size"),
        context_tokens=table.number("isl") + table.number("step"),
        heads=table.number("num_heads"),
        kv_heads=ones,
        token_bytes=LATENT_WIDTH * _bytes(table, "kv_cache_dtype", CACHED),
        width=(LATENT_WIDTH + LATENT_VALUES) * ones,
    )
    rates = [ProductRate.FP8 if each else ProductRate.PLAIN for each in narrow.tolist()]
    return _rows(table, shape, rates, form=table.text("kv_cache_dtype"))


def decode_gqa(folder: Path) -> KernelRows:
    """generation_attention.csv: grouped queries, some with a window."""
    table = _read(folder / "generation_attention.csv", kv_cache_dtype=CACHED)
    width = 2 * table.number("head_dim")
    shape = DecodeAttentionShape(
        requests=table.number("batch_size"),
        context_tokens=np.minimum(table.number("isl") + table.number("step"), _window(table)),
        heads=table.number("num_heads"),
        kv_heads=table.number("num_key_value_heads"),
        token_bytes=width * _bytes(table, "kv_cache_dtype", CACHED),
        width=width,
    )
    rates = [ProductRate.PLAIN] * len(table)
    return _rows(table, shape, rates, form=table.text("kv_cache_dtype"))


def prefill_mla(folder: Path) -> KernelRows:
    """context_mla.csv: keys and values expanded for every head."""
    table = _read(folder / "context_mla.csv", kv_cache_dtype=CACHED)
    ones = np.ones(len(table))
    shape = PrefillAttentionShape(
        prompts=table.number("batch_size"),
        tokens=table.number("isl"),
        heads=table.number("num_heads"),
        kv_heads=table.number("num_heads"),
        width=PROMPT_WIDTH * ones,
        cache_bytes=_bytes(table, "kv_cache_dtype", CACHED),
        window=np.inf * ones,
    )
    rates = [ProductRate.PLAIN] * len(table)
    return _rows(table, shape, rates, form=table.text("kv_cache_dtype"))


def prefill_gqa(folder: Path) -> KernelRows:
    """context_attention.csv."""
    path = folder / "context_attention.csv"
    table = _read(path, kv_cache_dtype=CACHED, attn_dtype=CACHED)
    narrow = table.text("attn_dtype") == "fp8"
    shape = PrefillAttentionShape(
        prompts=table.number("batch_size"),
        tokens=table.number("isl"),
        heads=table.number("num_heads"),
        kv_heads=table.number("num_key_value_heads"),
        width=2 * table.number("head_dim"),
        cache_bytes=_bytes(table, "kv_cache_dtype", CACHED),
        window=_window(table),
    )
    rates = [ProductRate.FP8 if each else ProductRate.PLAIN for each in narrow.tolist()]
    form = joined(table.text("kv_cache_dtype"), table.text("attn_dtype"))
    return _rows(table, shape, rates, form=form)


def experts(folder: Path) -> KernelRows:
    """moe.csv, and tables of wide expert parallelism where they are there."""
    names = ("moe.csv", "wideep_generation_moe.csv", "wideep_moe.csv")
    found = [folder / name for name in names if (folder / name).is_file()]
    tables = [_read(path, moe_dtype=FORMATS) for path in found]
    if not tables:
        raise ConfigError("kernels", folder, f"a folder with {names[0]}")
    return _together([_experts(table) for table in tables])


def _experts(table: KernelColumns) -> KernelRows:
    form, source = table.text("moe_dtype"), table.text("kernel_source")
    stored, rates = _formats(form)
    divided = table.number("moe_ep_size")
    skewed = np.char.startswith(table.text("distribution"), "power_law")
    shape = ExpertShape(
        tokens=table.number("num_tokens"),
        chosen=table.number("topk"),
        experts=table.number("num_experts"),
        held=np.maximum(1.0, table.number("num_experts") / divided),
        divided=divided,
        hidden=table.number("hidden_size"),
        columns=table.number("inter_size") / table.number("moe_tp_size"),
        matrices=np.where(np.char.endswith(source, "_nongated"), 2.0, 3.0),
        element_bytes=stored,
        skewed=skewed.astype(float),
    )
    return _rows(table, shape, rates, form=form, source=source)


def collectives(folder: Path) -> KernelRows:
    """nccl.csv and custom_allreduce.csv; sizes are elements."""
    found = []
    for name, format_column in (("nccl", "nccl_dtype"), ("custom_allreduce", "allreduce_dtype")):
        table = _read(folder / f"{name}.csv", **{format_column: SENT})
        operation, backend = table.text("op_name"), table.text("kernel_source")
        if "backend" in table.texts:
            backend = np.where(table.text("backend") == "", backend, table.text("backend"))
        shape = CollectiveShape(
            chips=table.number("num_gpus"),
            payload_bytes=table.number("message_size") * _bytes(table, format_column, SENT),
            reduces_all=(operation == "all_reduce").astype(float),
        )
        rates = [ProductRate.PLAIN] * len(table)
        found.append(_rows(table, shape, rates, form=operation, source=backend))
    return _together(found)


def _read(path: Path, **formats: Collection[str]) -> KernelColumns:
    """A table's rows of known machines and, by column, of known formats.

    The others are counted: a machine or a format that the catalog lacks spoils no other row.
    """
    table = read_columns(path).where("system", MACHINES)
    for column, known in formats.items():
        table = table.where(column, known)
    return table


def _bytes(table: KernelColumns, column: str, known: Mapping[str, float]) -> Float64s:
    return np.array([known[form] for form in table.text(column).tolist()], dtype=float)


def _formats(form: Strings) -> tuple[Float64s, list[ProductRate]]:
    each = [FORMATS[name] for name in form.tolist()]
    return np.array([stored for stored, _ in each], dtype=float), [rate for _, rate in each]


def _window(table: KernelColumns) -> Float64s:
    """Infinite where there is none."""
    window = table.number("window_size")
    return np.where(window > 0, window, np.inf)


def _rows(
    table: KernelColumns,
    shape: Any,
    rates: list[ProductRate],
    *,
    form: Strings,
    source: Strings | None = None,
) -> KernelRows:
    """`source`: kernels of a stack that are told apart; the stack itself by default."""
    machine = table.text("system")
    kernel = joined(table.text("stack") if source is None else source, form)
    levels = {
        "machine": machine,
        "generation": generations(machine),
        "stack": table.text("stack"),
        "format": form,
        "source": table.text("stack") if source is None else source,
        "kernel": kernel,
        "compiled": joined(kernel, generations(machine)),
        "fabric": fabrics(machine),
    }
    measured_ns = table.number("latency") * NS_PER_MS
    if not (measured_ns > 0).all():
        line = table.lines()[int(np.argmin(measured_ns > 0))]
        raise ConfigError("kernels", line, "a latency above 0")
    return KernelRows(
        shape=shape,
        silicon=silicon_of(machine, rates),
        levels=levels,
        measured_ns=measured_ns,
        lines=table.lines(),
        excluded=table.excluded,
    )


def _together(parts: list[KernelRows]) -> KernelRows:
    def one(records: list[Any]) -> Any:
        names = records[0].__dataclass_fields__
        return type(records[0])(
            **{name: np.concatenate([getattr(each, name) for each in records]) for name in names}
        )

    return KernelRows(
        shape=one([part.shape for part in parts]),
        silicon=one([part.silicon for part in parts]),
        levels={
            name: np.concatenate([part.levels[name] for part in parts]) for name in parts[0].levels
        },
        measured_ns=np.concatenate([part.measured_ns for part in parts]),
        lines=np.concatenate([part.lines for part in parts]),
        excluded=sum((Counter(part.excluded) for part in parts), Counter()),
    )
