"""Chart of measured against predicted: a panel for each metric, a colour for each machine."""

from typing import Any, Final

import altair as alt

from reporting.charts import chart_of, picture
from serving.analysis.validate.measured_row import MAIN_METRICS
from serving.analysis.validate.validation import Validation

_TITLES: Final = {
    "tpot": "TPOT, ms",
    "ttft": "median TTFT, s",
    "mean_ttft": "mean TTFT, s",
    "tokens_per_s": "tokens/s per chip",
}
_SCALES: Final = {"tpot": 1e3, "ttft": 1.0, "mean_ttft": 1.0, "tokens_per_s": 1.0}
_SIDE: Final = 330


def validation_chart(validation: Validation) -> alt.VConcatChart:
    """All metrics side by side on logarithmic axes, with lines of no error and of 12 %."""
    data = validation.fits.data
    return picture(
        f"{validation.names}: predicted against measured",
        (
            f"{len(validation.rows)} rows, by the fit of {data['date']} to {data['rows']} rows; "
            "dashed: 12 % off",
        ),
        alt.hconcat(*(_panel(validation, metric) for metric in MAIN_METRICS)),
    )


def _panel(validation: Validation, metric: str) -> alt.LayerChart | alt.FacetChart:
    points = list(_points(validation, metric))
    values = [each[name] for each in points for name in ("measured", "predicted")] or [1.0]
    ends = [min(values), max(values)]
    log = alt.Scale(type="log", nice=False, domain=ends)
    x = alt.X("measured:Q", scale=log, title=f"measured {_TITLES[metric]}")
    y = alt.Y("predicted:Q", scale=log, title="predicted")
    lines = [
        {"measured": end, "predicted": end * factor, "line": str(factor)}
        for factor in (1.0, 1.12, 1 / 1.12)
        for end in ends
    ]
    line = (
        chart_of(lines)
        .mark_line(clip=True, color="#888", strokeWidth=1, strokeDash=[4, 4])
        .encode(x=x, y=y, detail="line:N")
    )
    circles = (
        chart_of(points)
        .mark_point(size=28, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=alt.Color("hardware:N", legend=alt.Legend(orient="top", title=None)),
            shape=alt.Shape("speculation:N", legend=alt.Legend(orient="top", title=None)),
            tooltip=[
                alt.Tooltip(f"{name}:N") for name in ("hardware", "framework", "row", "error")
            ],
        )
    )
    return alt.layer(line, circles).properties(width=_SIDE, height=_SIDE)


def _points(validation: Validation, metric: str) -> list[dict[str, Any]]:
    scale = _SCALES[metric]
    points = []
    for place, row in enumerate(validation.rows):
        measured = row.measured.results.of(metric)
        if measured is None:
            continue
        configuration = row.measured.configuration
        predicted = float(validation.everything.of(metric)[place])
        points.append(
            {
                "measured": measured * scale,
                "predicted": predicted * scale,
                "hardware": configuration.hardware,
                "framework": configuration.framework,
                "speculation": "mtp" if configuration.speculative else "plain",
                "row": f"{configuration.workload}, {configuration.layout}, "
                f"{row.measured.users} users",
                "error": f"{100 * (predicted / measured - 1):+.1f} %",
            }
        )
    return points
