"""The report of one run: figures, conditions, and warnings.

The figures are `loadgen.measures`'.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadgen.measures.run_measures import RunMeasures
from loadgen.records.run_record import RunRecord
from loadgen.reports.run_data import run_fields, run_figures
from loadgen.reports.run_facts import (
    class_facts,
    client_facts,
    dilation_words,
    request_facts,
    run_verdict,
    server_facts,
)
from loadgen.reports.run_tables import (
    arrivals_table,
    energy_section,
    latency_tables,
    slo_tables,
    throughput_table,
    user_table,
)
from reporting.document import Document, FigureRow, Section

if TYPE_CHECKING:
    from reporting.charts import TitledChart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunReport:
    """A run and its figures."""

    record: RunRecord
    measures: RunMeasures

    def document(self) -> Document:
        """For people."""
        record, measures = self.record, self.measures
        header, several = record.header, len(record.header.classes) > 1
        label = f" · {header.label}" if header.label else ""
        sections: tuple[Section, ...] = (
            server_facts(record, measures),
            *(class_facts(each, several=several) for each in header.classes),
            request_facts(record, measures),
            arrivals_table(record, measures),
            *latency_tables(measures),
            user_table(measures),
            throughput_table(measures),
            *slo_tables(measures),
            energy_section(record, measures),
            client_facts(record, measures),
        )
        return Document(
            title=f"UltraServe {'simulated run' if header.simulated else 'load report'}{label}",
            subtitle=f"{_subject(self)} · {header.started_at} · {_time(self)}",
            sections=tuple(section for section in sections if section.rows),  # of what completed
            verdict=run_verdict(record, measures),
            notes=measures.warnings,
            command=header.command,
        )

    def fields(self) -> object:
        """For programs."""
        return run_fields(self.record, self.measures)

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets."""
        return run_figures(self.record, self.measures)

    def charts(self) -> "tuple[TitledChart, ...]":
        """Latency over time and as distributions, arrivals, requests in flight."""
        from loadgen.reports.run_charts import run_charts  # noqa: PLC0415 - Altair takes a while

        return tuple(run_charts(self.record, self.measures))


def _subject(report: RunReport) -> str:
    header = report.record.header
    return header.model if header.simulated else f"{header.model} at {header.url}"


def _time(report: RunReport) -> str:
    measures = report.measures
    if report.record.header.simulated:
        return "emulated time: modelled, not measured"
    if measures.time == "emulated":
        return f"emulated time, 1 s is {dilation_words(report.record, measures)}"
    return "wall time"
