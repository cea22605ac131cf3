"""DeepEP's kernels beside the exchange that ships, whose constants low-latency ones took part in
finding (`emulator.specs.stack_factors`).

A row of a table is an exchange: a dispatch and a combine. Low-latency kernels send a token once to
each of its experts, as engines do that decode. Normal ones send it once to each GPU that needs it,
over network cards once to each box, and take cores: those with COMMON_CORES or more and
PROMPT_TOKENS or more are scored, as prompts are exchanged; the others beside them.
"""

from collections.abc import Callable, Iterator, Mapping
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
HALVES: Final = ("dispatch", "combine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeScore:
    """Kernels of one machine over `gpus`: `what` is dispatch or combine."""

    mode: str
    machine: str
    gpus: int
    what: str
    score: KernelScore


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedExchanges:
    """`score`: of their dispatches and combines; None where nothing predicts them."""

    reason: str
    exchanges: int
    score: KernelScore | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeScores:
    """Of all tables of a folder; both empty where there are none."""

    scores: tuple[ExchangeScore, ...]
    excluded: tuple[ExcludedExchanges, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mode:
    """`measured_us`: a table's dispatches or combines. `unusual`: exchanges apart, by reason."""

    name: str
    file: str
    predicted_us: Callable[[str, int, Float64s, str], Float64s]
    measured_us: Callable[[KernelColumns, str], Float64s]
    unusual: Callable[[KernelColumns], dict[str, Bools]]


def _unusual(table: KernelColumns) -> dict[str, Bools]:
    cores = np.minimum(*(table.number(f"{what}_sms") for what in HALVES))
    few, short = cores < COMMON_CORES, table.number("num_token") < PROMPT_TOKENS
    return {
        f"normal kernels on fewer than {COMMON_CORES} cores": few,
        f"normal kernels of fewer than {PROMPT_TOKENS:,} tokens": short & ~few,
    }


_MODES: Final = (
    _Mode(
        name="low latency",
        file="wideep_deepep_ll.csv",
        predicted_us=low_latency_us,
        measured_us=lambda table, what: table.number(f"{what}_avg_t_us"),
        unusual=lambda _: {},
    ),
    _Mode(
        name="normal",
        file="wideep_deepep_normal.csv",
        predicted_us=normal_us,
        measured_us=lambda table, what: (
            table.number(f"{what}_transmit_us") + table.number(f"{what}_notify_us")
        ),
        unusual=_unusual,
    ),
)


def exchange_scores(folder: Path) -> ExchangeScores:
    """Of the folder's tables of DeepEP's kernels, of machines that are boxes of eight; the others
    are counted. ConfigError for a bad table.
    """
    scores: list[ExchangeScore] = []
    excluded: list[ExcludedExchanges] = []
    boxes = _boxes()
    for mode in _MODES:
        path = folder / mode.file
        if path.is_file():
            table = read_columns(path).where("system", boxes)
            scored, others = _scores(mode, table, boxes)
            scores += scored
            excluded += others
    return ExchangeScores(scores=tuple(scores), excluded=tuple(excluded))


def _boxes() -> dict[str, str]:
    """The catalog's boxes of eight by the names that tables have for their GPUs."""
    systems = hardware_names()
    return {
        name: systems[machine.chip].name
        for name, machine in MACHINES.items()
        if machine.chip in systems and systems[machine.chip].chips.count == GPUS_OF_A_BOX
    }


def _scores(
    mode: _Mode, table: KernelColumns, boxes: Mapping[str, str]
) -> tuple[list[ExchangeScore], list[ExcludedExchanges]]:
    """Of a table of `boxes`, of eight: scores, and what is excluded."""
    machines, tokens = table.text("system"), table.number("num_token")
    gpus = GPUS_OF_A_BOX * table.number("node_num").astype(np.int64)
    groups = sorted({*zip(machines.tolist(), gpus.tolist(), strict=True)})
    masks = {each: (machines == each[0]) & (gpus == each[1]) for each in groups}
    predicted_us = {what: np.zeros(len(table)) for what in HALVES}
    for (machine, count), own in masks.items():
        for what, us in predicted_us.items():
            us[own] = mode.predicted_us(boxes[machine], count, tokens[own], what)
    measured_us = {what: mode.measured_us(table, what) for what in HALVES}

    def score(own: Bools, *halves: str) -> KernelScore:
        return KernelScore.of(
            np.concatenate([predicted_us[what][own] for what in halves]),
            np.concatenate([measured_us[what][own] for what in halves]),
        )

    unusual = mode.unusual(table)
    usual = ~np.any([np.zeros(len(table), dtype=np.bool_), *unusual.values()], axis=0)
    scores = [
        ExchangeScore(
            mode=mode.name, machine=machine, gpus=count, what=what, score=score(own & usual, what)
        )
        for (machine, count), own in masks.items()
        if (own & usual).any()
        for what in HALVES
    ]
    unknown = [
        ExcludedExchanges(reason=f"{mode.name} kernels, {reason}", exchanges=count, score=None)
        for reason, count in table.excluded.items()
    ]
    apart = [
        ExcludedExchanges(reason=reason, exchanges=int(own.sum()), score=score(own, *HALVES))
        for reason, own in unusual.items()
        if own.any()
    ]
    return scores, unknown + apart


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


def excluded_exchange_lines(excluded: tuple[ExcludedExchanges, ...]) -> Iterator[str]:
    """A line for each reason."""
    for each in excluded:
        line = f"excluded from DeepEP's exchanges: {each.exchanges:,}, {each.reason}"
        if each.score is not None:
            line += f" (median error {each.score.median:.1%}, bias {each.score.bias:+.0%})"
        yield line


def exchange_data(found: ExchangeScores) -> dict[str, Any]:
    """For JSON."""
    return {"calibration": FITTED, **asdict(found)}
