"""Chart of the differences between two sides; an interval that excludes 0 is beyond noise."""

from typing import Final

import altair as alt

from loadgen.measures.comparison import Comparison
from loadgen.reports.comparison_report import figure_words, sides_words
from reporting import charts

_ROW_HEIGHT: Final = 20
_COLOURS: Final = {
    "better": charts.GREEN,
    "worse": charts.RED,
    "different": charts.ORANGE,
    "within noise": charts.GREY,
    "unknown": "#ced4da",
}


def comparison_chart(found: Comparison) -> tuple[charts.TitledChart, ...]:
    """Draw all classes together; none where nothing can be compared."""
    rows: list[charts.Row] = [
        {
            "figure": figure_words(each),
            "relative": each.relative,
            "low": each.relative if each.low is None else each.low,
            "high": each.relative if each.high is None else each.high,
            "verdict": each.verdict,
        }
        for each in found.differences
        if not each.traffic_class and each.relative is not None
    ]
    if not rows:
        return ()
    order = [str(row["figure"]) for row in rows]
    shades = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
        legend=alt.Legend(orient="top", title=None, symbolType="circle"),
    )
    drawn = charts.chart_of(rows).encode(
        y=alt.Y("figure:N", sort=order, title=None, axis=alt.Axis(labelLimit=240, grid=True)),
        color=shades,
        tooltip=[
            "figure:N",
            *(alt.Tooltip(f"{name}:Q", format="+.2%") for name in ("relative", "low", "high")),
            "verdict:N",
        ],
    )
    title = "difference of b from a, with its 95 % interval"
    x = alt.X("low:Q", title=title, axis=alt.Axis(format="+.0%"))
    spans = drawn.mark_rule(strokeWidth=2.5).encode(x=x, x2="high:Q")
    dots = drawn.mark_circle(size=75, opacity=1).encode(x=alt.X("relative:Q", title=title))
    zero = (
        charts.chart_of([{"at": 0}]).mark_rule(color=charts.INK, strokeWidth=1.2).encode(x="at:Q")
    )
    return (
        charts.titled(
            "What differs, and by how much",
            f"{sides_words(found)}, {found.time} time; {found.method}",
            *(zero, spans, dots),
            width=charts.WIDTH - 160,
            height=_ROW_HEIGHT * len(rows),
        ),
    )
