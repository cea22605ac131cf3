"""A small folder of kernels with the public tables' columns, timed by the laws that ship."""

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from emulator.timing.laws.shipped_laws import shipped_law
from serving.analysis.validate.kernels.kernel_families import FAMILIES

MACHINES: Final = ("h100_sxm", "b200_sxm")
STACKS: Final = ("trtllm", "vllm")
_SIZES: Final = (1, 64, 2048)


def _tables() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Iterable[Any]]]]:
    """Files: columns that stay, columns that vary."""
    heads = {"num_heads": 32, "beam_width": 1, "attn_dtype": "bfloat16", "window_size": ""}
    gqa = {**heads, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "bfloat16"}
    mla = {"num_heads": 16, "kv_cache_dtype": "fp8", "mla_dtype": "bfloat16", "tp_size": 8}
    decode = {"batch_size": _SIZES, "isl": (1,), "step": (15, 2047)}
    prefill = {"batch_size": (1, 8), "isl": (64, 1024, 4096), "step": (0,)}
    yield "gemm", {"gemm_dtype": "fp8"}, {"m": _SIZES, "n": (512, 8192), "k": (4096,)}
    yield "generation_attention", gqa, decode
    yield "generation_mla", mla, decode
    yield "context_attention", gqa, prefill
    yield "context_mla", mla, prefill
    experts = {"moe_dtype": "fp8", "hidden_size": 4096, "inter_size": 1536, "topk": 8}
    experts |= {"num_experts": 128, "moe_tp_size": 1, "kernel_source": "grouped"}
    varied = {"num_tokens": _SIZES, "moe_ep_size": (1, 8), "distribution": ("balanced",)}
    yield "moe", experts, varied
    yield "nccl", {"nccl_dtype": "half", "op_name": "all_gather"}, _collectives(1)
    yield (
        "custom_allreduce",
        {"allreduce_dtype": "bfloat16", "op_name": "all_reduce"},
        (_collectives(2)),
    )


def _collectives(chips: int) -> dict[str, Iterable[Any]]:
    return {"num_gpus": (2 * chips, 4 * chips), "message_size": (512, 65_536, 2**24)}


def write_kernels(folder: Path) -> Path:
    """The folder, with times as the laws that ship predict them for each machine's base."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, fixed, varied in _tables():
        rows = [
            {"system": machine, "stack": stack, "kernel_source": stack, "latency": 1.0, **fixed}
            | dict(zip(varied, values, strict=True))
            for machine in MACHINES
            for stack in STACKS
            for values in itertools.product(*varied.values())
        ]
        write_table(folder / f"{name}.csv", rows)
    for family in FAMILIES:
        _time(folder, family)
    return folder


def _time(folder: Path, family: Any) -> None:
    rows = family.read(folder)
    times_ms = shipped_law(family.name).duration_ns(rows.shape, rows.silicon, in_loop=True) / 1e6
    found = dict(zip(rows.lines.tolist(), times_ms.tolist(), strict=True))
    for path in {folder / line.split(":")[0] for line in found}:
        with path.open(newline="") as lines:
            table = list(csv.DictReader(lines))
        for number, row in enumerate(table):
            row["latency"] = found[f"{path.name}:{number + 2}"]
        write_table(path, table)


def write_table(path: Path, rows: list[Any]) -> None:
    """Rows of equal columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
