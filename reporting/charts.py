"""Style of all charts: sizes, colours, axes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isnan, log10
from typing import Any, Final, Literal

import altair as alt
import numpy as np
import vl_convert
from numpy.typing import NDArray

from reporting.document import ReportDocument

Float64s = NDArray[np.float64]

WIDTH: Final = 860
HEIGHT: Final = 230
LEGEND_ROOM: Final = 18
"""Points between a legend and its chart: a line of words."""
GREY: Final = "#868e96"
INK: Final = "#495057"
BLUE: Final = "#1c7ed6"
LIGHT_BLUE: Final = "#74c0fc"
NAVY: Final = "#0b3866"
ORANGE: Final = "#e8590c"
GREEN: Final = "#2b8a3e"
PURPLE: Final = "#862e9c"
RED: Final = "#c92a2a"
COLOURS: Final = (BLUE, ORANGE, GREEN, PURPLE, "#0b7285", "#5c940d", RED)
_MANY_DECADES: Final = 3
_SCALE: Final = 2.0  # pixels per point: sharp on the screens of today

Chart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart | alt.HConcatChart
Row = Mapping[str, float | int | str | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TitledChart:
    """A chart with its title and a sentence on reading it."""

    title: str
    about: str
    chart: Chart


def titled(
    title: str, about: str, *layers: Chart, width: float = WIDTH, height: float = HEIGHT
) -> TitledChart:
    """The layers as one chart, the first one lowest."""
    chart = layers[0] if len(layers) == 1 else alt.layer(*layers)
    return TitledChart(title=title, about=about, chart=chart.properties(width=width, height=height))


def chart_of(rows: Iterable[Row]) -> alt.Chart:
    """A chart with inline data: nothing is fetched."""
    # Altair copies lists at each change of a chart, and looks at each row of its own data classes.
    return alt.Chart({"values": tuple(dict(row) for row in rows)})


def series_rows(
    x: tuple[str, Float64s], y: str, series: Mapping[str, Float64s], *, what: str = "what"
) -> list[Row]:
    """A row for each point of each series, [points], over the named axis `x`; NaN is skipped."""
    name, at = x
    return [
        {name: point, y: value, what: words}
        for words, values in series.items()
        for point, value in zip(rounded(at), rounded(values), strict=True)
        if not isnan(value)
    ]


def rows_of(**columns: Float64s) -> list[Row]:
    """A row for each index of the columns, [rows] each."""
    values = zip(*(rounded(each) for each in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def logarithmic(low: float, high: float, *, clamp: bool = True) -> dict[str, Any]:
    """Scale and axis from `low` to `high`, both above 0, with ticks at round values.

    Without `clamp` values beyond lie outside, for clipped marks.
    """
    low, high = low / 1.15, high * 1.15
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    reach = log10(high / low)
    steps = (1,) if reach > _MANY_DECADES else (1, 2, 5) if reach > 1 else (1, 2, 3, 4, 5, 6, 8)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    return {
        "scale": alt.Scale(type="log", nice=False, domain=[low, high], clamp=clamp),
        "axis": alt.Axis(values=[tick for tick in ticks if low <= tick <= high], format=",~g"),
    }


def whole_axis(most: int, title: str) -> alt.Axis:
    """Ticks at whole numbers alone, of values from 0 to `most`."""
    return alt.Axis(title=title, format=",d", tickCount=min(10, most))


def colour(
    field: str,
    names: Sequence[str],
    colours: Sequence[str] = COLOURS,
    *,
    symbol: str = "stroke",
    orient: Literal["top", "right", "top-right"] = "top",
    room: int = LEGEND_ROOM,
) -> alt.Color:
    """One colour for each name, in order, with a legend `room` points from the chart."""
    chosen = [colours[place % len(colours)] for place in range(len(names))]
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=chosen),
        legend=alt.Legend(
            orient=orient,
            title=None,
            symbolType=symbol,
            symbolStrokeWidth=3,
            symbolOpacity=1,
            offset=room,
        ),
    )


def dashes(field: str, names: Sequence[str], *, room: int = LEGEND_ROOM) -> alt.StrokeDash:
    """A solid line for the first name, dashes for the others."""
    patterns = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]]
    return alt.StrokeDash(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=patterns[: len(names)]),
        legend=alt.Legend(orient="top", title=None, symbolStrokeColor=INK, offset=room),
    )


def shapes(field: str, names: Sequence[str]) -> alt.Shape:
    """A disc for the first name; for the others shapes that do not hide it."""
    marks = ["circle", "diamond", "square", "triangle-up"]
    return alt.Shape(
        f"{field}:N", scale=alt.Scale(domain=list(names), range=marks[: len(names)]), legend=None
    )


def rounded(values: Float64s) -> list[float]:
    """Six figures: more than a picture can show, and far shorter in its file."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def picture(
    title: str, subtitle: Sequence[str], *panels: Chart, spacing: int = 14
) -> alt.VConcatChart:
    """The panels one below the other, under a title, in the project's style."""
    words = alt.TitleParams(text=title, subtitle=list(subtitle), fontSize=17, offset=12)
    shown = alt.vconcat(*panels, spacing=spacing).resolve_scale(color="independent")
    made: alt.VConcatChart = styled(shown.properties(title=words, padding=14))
    return made


def styled(chart: Chart) -> Any:
    """A whole picture in the project's style."""
    return (
        chart.configure(background="white", font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="#e9ecef",
            domainColor=GREY,
            tickColor=GREY,
            labelColor=INK,
            titleColor=INK,
            labelFontSize=11,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_legend(labelFontSize=12, labelColor=INK, titleColor=INK, labelLimit=320)
        .configure_title(anchor="start", fontSize=15, subtitleFontSize=12, subtitleColor=INK)
    )


def to_png(report: ReportDocument) -> bytes:
    """A PNG with all charts, one below the other; empty without any."""
    document, charts = report.document(), report.charts()
    if not charts:
        return b""
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
