"""The report of one run: its figures, how they were got, and every warning about them.

Nothing here measures; the figures are `loadgen.measures`'.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunRecord
from loadgen.reports.document import Document, Facts, FigureRow, Grid
from loadgen.reports.run_facts import (
    class_facts,
    client_facts,
    dilation_words,
    request_facts,
    server_facts,
)
from loadgen.reports.run_fields import run_fields
from loadgen.reports.run_figures import run_figures
from loadgen.reports.run_tables import (
    arrivals_grid,
    energy_section,
    latency_grids,
    slo_grids,
    throughput_grid,
    user_grid,
)
from loadgen.reports.run_verdict import run_verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReport:
    """A run and its figures."""

    record: RunRecord
    measures: RunMeasures

    def document(self) -> Document:
        """For people."""
        record, measures = self.record, self.measures
        header = record.header
        label = f" · {header.label}" if header.label else ""
        return Document(
            title=f"UltraServe load report{label}",
            subtitle=f"{header.model} at {header.url} · {header.started_at} · {_time(self)}",
            sections=_not_empty(
                server_facts(record, measures),
                *(class_facts(each, several=len(header.classes) > 1) for each in header.classes),
                request_facts(record, measures),
                arrivals_grid(record, measures),
                *latency_grids(measures),
                user_grid(measures),
                throughput_grid(measures),
                *slo_grids(measures),
                energy_section(measures),
                client_facts(record, measures),
            ),
            verdict=run_verdict(record, measures),
            notes=measures.warnings,
            command=header.command,
        )

    def fields(self) -> Mapping[str, object]:
        """For programs."""
        return run_fields(self.record, self.measures)

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets."""
        return run_figures(self.record, self.measures)


def _time(report: RunReport) -> str:
    measures = report.measures
    if measures.time == "emulated":
        return f"emulated time, 1 s is {dilation_words(report.record, measures)}"
    return "wall time"


def _not_empty(*sections: Facts | Grid) -> tuple[Facts | Grid, ...]:
    """Without tables that have no row: nothing completed that they could be of."""
    return tuple(section for section in sections if section.rows)
