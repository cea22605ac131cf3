"""The charts of any report."""

from loadgen.reports.chart_style import TitledChart
from loadgen.reports.comparison_chart import comparison_chart
from loadgen.reports.comparison_report import ComparisonReport
from loadgen.reports.document import ReportDocument
from loadgen.reports.run_charts import run_charts
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_charts import sweep_charts
from loadgen.reports.sweep_report import SweepReport


def charts_of(report: ReportDocument) -> tuple[TitledChart, ...]:
    """Draw all charts of a report, in the order in which they are shown."""
    if isinstance(report, RunReport):
        return tuple(run_charts(report.record, report.measures))
    if isinstance(report, ComparisonReport):
        return comparison_chart(report.comparison)
    if isinstance(report, SweepReport):
        return tuple(sweep_charts(report.sweep))
    return ()
