"""A simulated run as the load generator's report, and charts of what a client does not see."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import altair as alt
import numpy as np

from emulator.arrays import Float64s
from loadgen.reports.run_report import RunReport
from loadgen.reports.run_series import BINS_MAX, Bins
from reporting.charts import TitledChart, chart_of, colour, series_rows, titled
from reporting.document import Document, Facts, FigureRow
from serving.analysis.simulate.simulated_report import SimulatedReport, steps_words
from serving.analysis.simulate.step_series import StepSeries
from serving.simulator import Run, SimulatedDeployment

TIME: Final = "emulated s since the run's start"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedPage:
    """The report of a run's record with `steps`, those of `run`; a `ReportDocument`."""

    record_report: RunReport
    report: SimulatedReport
    run: Run
    deployment: SimulatedDeployment
    steps: StepSeries

    def document(self) -> Document:
        """For people."""
        document = self.record_report.document()
        rows = (("steps", steps_words(self.report)),)
        return replace(document, sections=(*document.sections, Facts(title="engine", rows=rows)))

    def fields(self) -> object:
        """For programs: as the record's report."""
        return self.record_report.fields()

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: as the record's report."""
        return self.record_report.figures()

    def charts(self) -> tuple[TitledChart, ...]:
        """Those of the record's report; requests at the engine, KV cache and power over time."""
        drawn = self.record_report.charts()
        if not len(self.steps):
            return drawn
        bins = self._bins()
        return (*drawn, self._queues(bins), self._kv_cache(bins), self._power(bins))

    def _bins(self) -> Bins:
        begin_ns, end_ns = round(self.run.begin_s * 1e9), round(self.run.end_s * 1e9)
        edges_ns = np.linspace(begin_ns, end_ns, BINS_MAX + 1).astype(np.int64)
        return Bins(edges_ns=edges_ns, dilation=1.0)

    def _queues(self, bins: Bins) -> TitledChart:
        means = {name: self.steps.means(name, bins.edges_ns) for name in ("running", "waiting")}
        return _lines(
            "Requests at the schedulers over time",
            "Running ones have a seat on a rank; waiting ones have none, or lost it.",
            bins,
            means,
            y=alt.Y("value:Q", title="requests"),
        )

    def _kv_cache(self, bins: Bins) -> TitledChart:
        blocks = self.deployment.kv_blocks
        return _lines(
            "KV cache in use over time",
            f"Blocks that requests hold, of {blocks:,} on all ranks.",
            bins,
            {"KV cache": self.steps.means("kv_blocks_used", bins.edges_ns) / blocks},
            y=alt.Y("value:Q", title="share of the blocks", axis=alt.Axis(format="%")),
        )

    def _power(self, bins: Bins) -> TitledChart:
        chips = self.deployment.all_idle_watts + self.steps.means("watts_above_idle", bins.edges_ns)
        facility = np.array([self.deployment.facility_watts(watts) for watts in chips.tolist()])
        return _lines(
            "Power over time",
            "Of the chips, and at the utility's meter with hosts, conversion and cooling.",
            bins,
            {"chips": chips, "meter": facility},
            y=alt.Y("value:Q", title="W"),
        )


def _lines(
    title: str, about: str, bins: Bins, series: Mapping[str, Float64s], *, y: alt.Y
) -> TitledChart:
    """Means in pieces of the run, a line for each of `series`, [pieces]."""
    rows = series_rows(("at_s", bins.middles_s), "value", series)
    chart = (
        chart_of(rows)
        .mark_line(interpolate="step", strokeWidth=1.8)
        .encode(
            x=alt.X("at_s:Q", title=TIME, scale=alt.Scale(nice=False)),
            y=y,
            color=colour("what", [*series]),
            tooltip=["at_s:Q", "value:Q", "what:N"],
        )
    )
    return titled(title, f"{about} Means of {bins.width_s:.3g} s.", chart)
