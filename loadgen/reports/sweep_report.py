"""The report of a sweep: each point, the knee, the SLO's highest load, and Pareto."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import PointFigures, SweepPoint, SweepRecord
from loadgen.reports.sweep_tables import (
    LOAD_WORDS,
    bounds_table,
    findings,
    pareto_table,
    point_notes,
    points_table,
    sweep_facts,
)
from reporting.document import Document, FigureRow, Section

if TYPE_CHECKING:
    from reporting.charts import TitledChart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepReport:
    """A sweep over loads."""

    sweep: SweepRecord

    def document(self) -> Document:
        """For people."""
        sweep = self.sweep
        axis = "rates" if sweep.axis == "rate" else "concurrencies"
        sections: list[Section] = [findings(sweep), points_table(sweep)]
        if any(point.bounds for point in sweep.points):
            sections.append(bounds_table(sweep))
        for title, places, name in (
            ("tokens/s per MW", sweep.pareto_per_mw, "tokens_per_s_per_mw"),
            ("tokens/s per chip", sweep.pareto_per_chip, "tokens_per_s_per_chip"),
        ):
            if places:
                sections.append(pareto_table(sweep, title, places, name))
        sections.append(sweep_facts(sweep))
        return Document(
            title=f"UltraServe sweep over {axis}",
            subtitle=f"{sweep.model} at {sweep.url} · {sweep.started_at} · {sweep.time} time",
            sections=tuple(sections),
            notes=(*sweep.notes, *point_notes(sweep)),
            command=sweep.command,
        )

    def fields(self) -> object:
        """For programs."""
        return self.sweep

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: a row per figure and point."""
        return tuple(row for point in self.sweep.points for row in _rows(self.sweep, point))

    def charts(self) -> "tuple[TitledChart, ...]":
        """Throughput and latency with the knee, and the two Pareto curves."""
        from loadgen.reports.sweep_charts import sweep_charts  # noqa: PLC0415 - Altair takes a while

        return tuple(sweep_charts(self.sweep))


def _rows(sweep: SweepRecord, point: SweepPoint) -> Iterator[FigureRow]:
    extra = {
        "load": repr(point.load),
        "load_unit": LOAD_WORDS[sweep.axis],
        "stage": point.stage,
        "results": point.results,
        "time": sweep.time,
        "verdict": point.verdict or "",
    }
    for each in fields(PointFigures):
        found: Estimate | float | None = getattr(point.figures, each.name)
        if found is None:
            continue
        measured = found if isinstance(found, Estimate) else Estimate(value=found)
        yield FigureRow(
            traffic_class="all",
            figure=each.name,
            value=measured.value,
            low=measured.low,
            high=measured.high,
            samples=point.requests,
            extra=extra,
        )
