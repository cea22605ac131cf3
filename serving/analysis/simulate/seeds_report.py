"""Figures of runs that differ by their seed alone: means, and 95 % intervals of them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from loadgen.measures.intervals import independent_estimate
from loadgen.records.estimate import Estimate
from reporting.document import Column, Document, Facts, Lines, table_of
from reporting.numbers import number
from serving.analysis.simulate.simulated_report import SimulatedReport
from serving.analysis.steady_state.model_error import error_in_words, error_of

_OF_THIS_MACHINE: Final = ("wall_s", "compile_s")
_SHOWN: Final = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "e2e_ms": "E2E, ms",
    "output_tokens_per_s": "output tokens/s",
    "preemptions": "preemptions",
    "hit_tokens": "prompt tokens cached",
    "joules": "energy, J",
    "output_tokens_per_s_per_mw": "output tokens/s/MW",
    "kept": "share that keeps the target",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsReport:
    """Runs of `seeds`, in their order; `figures` are those that every run has, by their names in a
    run's report, with dots. An interval is Student's t over the seeds.
    """

    seeds: tuple[int, ...]
    figures: dict[str, Estimate]
    runs: tuple[SimulatedReport, ...]
    wall_s: float


def seeds_report(
    seeds: Sequence[int], runs: Sequence[SimulatedReport], *, wall_s: float
) -> SeedsReport:
    """The figures of at least one run."""
    each = [dict(_numbers(asdict(run))) for run in runs]
    names = [name for name in each[0] if all(name in run for run in each)]
    return SeedsReport(
        seeds=tuple(seeds),
        figures={name: _estimate(name, [run[name] for run in each]) for name in names},
        runs=tuple(runs),
        wall_s=wall_s,
    )


def _estimate(name: str, values: Sequence[float]) -> Estimate:
    found = independent_estimate(np.array(values, dtype=np.float64))
    if not name.startswith("kept.") or found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _numbers(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif name == "kept" and value is not None:
            yield from zip(("kept.ttft", "kept.tpot", "kept.both"), value, strict=True)
        elif isinstance(value, int | float) and name not in _OF_THIS_MACHINE:
            yield f"{prefix}{name}", value


def seeds_document(report: SeedsReport) -> Document:
    """The report to be read."""
    first, last = report.seeds[0], report.seeds[-1]
    rows = [
        (f"{_SHOWN[head]} {rest}".strip(), estimate)
        for name, estimate in report.figures.items()
        for head, _, rest in [name.partition(".")]
        if head in _SHOWN
    ]
    facts = (
        ("runs", f"{len(report.seeds)}, seeds {first} to {last}"),
        ("requests", f"{sum(run.completed_requests for run in report.runs):,} completed"),
        ("simulated in", f"{number(report.wall_s)} s"),
    )
    table = table_of(
        (
            Column("figure", lambda row: row[0], align="left"),
            Column("mean", lambda row: row[1].value),
            Column("95 % from", lambda row: row[1].low),
            Column("to", lambda row: row[1].high),
        ),
        rows,
    )
    return Document(
        title="Simulated runs",
        subtitle="modelled, not measured",
        sections=(
            Facts(title="", rows=facts),
            table,
            Lines(rows=(error_in_words(error_of(report.runs[0].model_error)),)),
        ),
    )
