"""DeepEP's kernels beside the exchange that ships: no fit of this folder, one calibration.

Low-latency kernels send a row once to each of a token's experts, as engines do that decode. Normal
ones send it once to each GPU that needs it, over network cards once to each box, and take cores:
those with COMMON_CORES or more and PROMPT_TOKENS or more are scored, as prompts are exchanged.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from emulator.arrays import Bools, Float64s
from emulator.specs.shipped_fits import FITTED
from reporting.document import Column, Table, table_of
from serving.analysis.validate.expert_parallel_rates import low_latency_us, normal_us
from serving.analysis.validate.kernels.kernel_columns import KernelColumns, read_columns
from serving.analysis.validate.kernels.kernel_machines import MACHINES
from serving.analysis.validate.kernels.kernel_scores import KernelScore
from serving.analysis.validate.row_deployment import hardware_names

GPUS_OF_A_BOX: Final = 8
COMMON_CORES: Final = 20
PROMPT_TOKENS: Final = 4_096

_Predicted = Callable[[str, int, Float64s, str], Float64s]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeScore:
    """Kernels of one machine over `gpus`: `what` is dispatch or combine."""

    mode: str
    machine: str
    gpus: int
    what: str
    score: KernelScore


def exchange_scores(folder: Path) -> tuple[ExchangeScore, ...]:
    """Of the folder's tables of DeepEP's kernels, of machines that are boxes of eight; none where
    there are no tables. ConfigError for a bad one.
    """
    return (
        *_scores(folder / "wideep_deepep_ll.csv", "low latency", low_latency_us),
        *_scores(folder / "wideep_deepep_normal.csv", "normal", normal_us),
    )


def _scores(path: Path, mode: str, predicted: _Predicted) -> Iterator[ExchangeScore]:
    if not path.is_file():
        return
    table = read_columns(path)
    machines, boxes = table.text("system"), table.number("node_num").astype(np.int64)
    for machine, nodes in sorted({*zip(machines.tolist(), boxes.tolist(), strict=True)}):
        gpus, box = nodes * GPUS_OF_A_BOX, _box(machine)
        if box is None:
            continue
        for what in ("dispatch", "combine"):
            own, measured_us = _measured(table, mode, what)
            own &= (machines == machine) & (boxes == nodes)
            if not own.any():
                continue
            us = predicted(box, gpus, table.number("num_token")[own], what)
            score = KernelScore.of(us, measured_us[own])
            yield ExchangeScore(mode=mode, machine=machine, gpus=gpus, what=what, score=score)


def _box(machine: str) -> str | None:
    """The catalog's box of eight of these GPUs, if there is one."""
    known = MACHINES.get(machine)
    system = None if known is None else hardware_names().get(known.chip)
    return system.name if system and system.chips.count == GPUS_OF_A_BOX else None


def _measured(table: KernelColumns, mode: str, what: str) -> tuple[Bools, Float64s]:
    """Rows that count, and microseconds: [rows] both."""
    if mode == "low latency":
        return np.ones(len(table), dtype=np.bool_), table.number(f"{what}_avg_t_us")
    usual = table.number(f"{what}_sms") >= COMMON_CORES
    usual &= table.number("num_token") >= PROMPT_TOKENS
    return usual, table.number(f"{what}_transmit_us") + table.number(f"{what}_notify_us")


def exchange_table(scores: tuple[ExchangeScore, ...]) -> Table:
    """A row for each score."""
    columns: list[Column[ExchangeScore]] = [
        Column("DeepEP", lambda each: each.mode, align="left"),
        Column("machine", lambda each: each.machine, align="left"),
        Column("GPUs", lambda each: each.gpus, "d"),
        Column("", lambda each: each.what, align="left"),
        Column("kernels", lambda each: each.score.kernels, ","),
        Column("median error", lambda each: each.score.median, ".1%"),
        Column("90th percentile", lambda each: each.score.p90, ".0%"),
        Column("bias", lambda each: each.score.bias, "+.0%"),
    ]
    return table_of(columns, scores)


def exchange_data(scores: tuple[ExchangeScore, ...]) -> dict[str, Any]:
    """For JSON, beside the families."""
    found = [asdict(each) for each in scores]
    return {"family": "DeepEP", "calibration": FITTED, "scores": found}
