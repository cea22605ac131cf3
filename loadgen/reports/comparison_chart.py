"""Chart of the differences between two sides; an interval that excludes 0 is beyond noise."""

from typing import Final

import altair as alt

from loadgen.measures.comparison import Comparison
from loadgen.reports.comparison_report import figure_words, sides_words
from reporting.charts import (
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    WIDTH,
    Row,
    TitledChart,
    chart_of,
    titled,
)

_ROW_HEIGHT: Final = 20
_COLOURS: Final = {
    "better": GREEN,
    "worse": RED,
    "different": ORANGE,
    "within noise": GREY,
    "unknown": "#ced4da",
}


def comparison_chart(found: Comparison) -> tuple[TitledChart, ...]:
    """Draw those of all classes together; none where nothing can be compared."""
    rows: list[Row] = [
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
    drawn = chart_of(rows).encode(
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
    zero = chart_of([{"at": 0}]).mark_rule(color=INK, strokeWidth=1.2).encode(x="at:Q")
    return (
        titled(
            "What differs, and by how much",
            f"{sides_words(found)}, {found.time} time; {found.method}",
            *(zero, spans, dots),
            width=WIDTH - 160,
            height=_ROW_HEIGHT * len(rows),
        ),
    )
