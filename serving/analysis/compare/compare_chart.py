"""Bars of compared systems, a panel for each measure."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt

from reporting.charts import BLUE, INK, Row, TitledChart, chart_of, picture, titled
from serving.analysis.compare.compare import ComparedSystem
from serving.analysis.compare.compare_report import CompareReport, Measure

_WIDTH, _BAR_HEIGHT = 620, 26
_DIGITS: Final = ",.4~g"


def bar_charts(
    found: Sequence[ComparedSystem], measures: Sequence[Measure]
) -> tuple[TitledChart, ...]:
    """A chart for each measure that is known of a system; of each less is better."""
    drawn = []
    for measure in measures:
        rows: list[Row] = [
            {"system": row.name, "value": value / measure.scale}
            for row in found
            if (value := measure.value(row)) is not None
        ]
        if rows:
            drawn.append(_bars(measure, rows))
    return tuple(drawn)


def _bars(measure: Measure, rows: list[Row]) -> TitledChart:
    y = alt.Y("system:N", sort=None, title=None)
    x = alt.X("value:Q", title=measure.unit or None, scale=alt.Scale(zero=True))
    return titled(
        measure.name,
        "Less is better.",
        chart_of(rows).mark_bar(color=BLUE).encode(x=x, y=y),
        chart_of(rows)
        .mark_text(align="left", dx=4, color=INK)
        .encode(x=x, y=y, text=alt.Text("value:Q", format=_DIGITS)),
        width=_WIDTH,
        height=_BAR_HEIGHT * len(rows),
    )


def compare_chart(report: CompareReport) -> alt.VConcatChart:
    """All panels, one below the other."""
    document = report.document()
    panels: list[Any] = [
        each.chart.properties(title=alt.TitleParams(text=each.title, anchor="start", fontSize=13))
        for each in report.charts()
    ]
    return picture(
        document.title,
        (document.subtitle, "modelled, not measured; less is better"),
        *panels,
        spacing=18,
    )
