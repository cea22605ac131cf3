"""The charts of a report as one picture."""

import altair as alt
import vl_convert

from loadgen.errors import LoadError
from loadgen.reports.chart_style import styled
from loadgen.reports.charts import charts_of
from loadgen.reports.document import ReportDocument

_SCALE = 2.0  # pixels per point: sharp on the screens of today


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
