"""The charts of any report, and all of them as one picture."""

import altair as alt
import vl_convert

from loadgen.errors import LoadError
from loadgen.reports.chart_style import TitledChart, styled
from loadgen.reports.comparison_chart import comparison_chart
from loadgen.reports.comparison_report import ComparisonReport
from loadgen.reports.document import ReportDocument
from loadgen.reports.run_charts import run_charts
from loadgen.reports.run_report import RunReport
from loadgen.reports.sweep_charts import sweep_charts
from loadgen.reports.sweep_report import SweepReport

_SCALE = 2.0  # pixels per point: sharp on the screens of today


def charts_of(report: ReportDocument) -> tuple[TitledChart, ...]:
    """Draw all charts of a report, in the order in which they are shown."""
    if isinstance(report, RunReport):
        return tuple(run_charts(report.record, report.measures))
    if isinstance(report, ComparisonReport):
        return comparison_chart(report.comparison)
    if isinstance(report, SweepReport):
        return tuple(sweep_charts(report.sweep))
    return ()


def to_png(report: ReportDocument) -> bytes:
    """Return a PNG with all charts, one below the other; raises LoadError if there is none."""
    document = report.document()
    charts = charts_of(report)
    if not charts:
        raise LoadError("there is nothing to draw: no request has ended")
    panels = [
        each.chart.properties(title=alt.TitleParams(text=each.title, subtitle=each.about))
        for each in charts
    ]
    picture = alt.vconcat(*panels, spacing=30).resolve_scale(
        color="independent", strokeDash="independent"
    )
    title = alt.TitleParams(text=document.title, subtitle=document.subtitle, fontSize=20, offset=20)
    made = styled(picture.properties(title=title, padding=20))
    png: bytes = vl_convert.vegalite_to_png(made.to_json(), scale=_SCALE)
    return png
