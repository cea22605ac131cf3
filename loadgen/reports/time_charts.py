"""How a run went over time: latency, requests asked and achieved, tokens, what was in flight."""

from collections.abc import Mapping
from math import isnan
from typing import Final

import altair as alt
import numpy as np

from loadgen.measures.columns import Columns
from loadgen.records.run_record import ClassHeader
from loadgen.reports.run_series import Bins, percentile_in_bins, shown_points, under_way
from reporting.charts import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    LIGHT_BLUE,
    NAVY,
    ORANGE,
    RED,
    WIDTH,
    Row,
    TitledChart,
    colour,
    dashes,
    data_of,
    logarithmic,
    rounded,
)

DUE: Final = "from when due"
SENT: Final = "from send"


def latency_over_time(columns: Columns, bins: Bins, time: str, whose: str) -> TitledChart:
    """TTFT counted from when due and from the send; at least one request streamed a reply."""
    kept = columns.where(columns.streamed)
    ns_per_ms = 1e6 * bins.dilation
    due_ms = np.maximum((kept.first_ns - kept.intended_ns) / ns_per_ms, 1e-3)
    sent_ms = np.maximum((kept.first_ns - kept.sent_ns) / ns_per_ms, 1e-3)
    lines: list[Row] = []
    for words, values in ((DUE, due_ms), (SENT, sent_ms)):
        for percentile in (50, 99):
            found = percentile_in_bins(bins, kept.intended_ns, values, percentile)
            lines.extend(
                {"at_s": at, "ms": ms, "counted": words, "line": f"p{percentile}"}
                for at, ms in zip(rounded(bins.middles_s), rounded(found), strict=True)
                if not isnan(ms)  # an empty bin has none
            )
    chosen = shown_points(bins, kept.intended_ns, due_ms)
    at_s = kept.intended_ns[chosen] / (1e9 * bins.dilation)
    points: list[Row] = [
        {"at_s": at, "ms": ms}
        for at, ms in zip(rounded(at_s), rounded(due_ms[chosen]), strict=True)
    ]
    y = alt.Y(
        "ms:Q",
        title=f"TTFT, {time} ms",
        **logarithmic(float(min(due_ms.min(), sent_ms.min())), float(due_ms.max())),
    )
    x = _x(bins, time)
    dots = (
        alt.Chart(data_of(points))
        .mark_circle(size=12, opacity=0.35, color=GREY)
        .encode(x=x, y=y, tooltip=["at_s:Q", "ms:Q"])
    )
    # The one from the send is thin and goes on top: where both are the same, both are seen.
    of_each = [
        alt.Chart(data_of([line for line in lines if line["counted"] == words]))
        .mark_line(interpolate="linear", strokeWidth=width, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour("counted", (DUE, SENT), (LIGHT_BLUE, NAVY)),
            strokeDash=dashes("line", ("p50", "p99")),
            tooltip=["at_s:Q", "ms:Q", "counted:N", "line:N"],
        )
        for words, width in ((DUE, 4.5), (SENT, 1.4))
    ]
    some = "" if len(points) == len(kept) else f" ({len(points):,} of {len(kept):,})"
    return TitledChart(
        title=f"Time to first token{whose} over time",
        about=f"Dots: requests{some}, at the time when they were due. Where the lines part, "
        "requests were sent late: what is counted from the send alone does not show it.",
        chart=alt.layer(dots, *of_each).properties(width=WIDTH, height=HEIGHT),
    )


def rates_over_time(
    header: ClassHeader, columns: Columns, bins: Bins, time: str, whose: str
) -> TitledChart:
    """Requests of a class that were due, sent, completed and failed per second."""
    kinds = {
        "due": (bins.rates(columns.intended_ns), GREY),
        "sent": (bins.rates(columns.sent_ns), ORANGE),
        "completed": (bins.rates(columns.last_ns[columns.done]), GREEN),
        "failed": (bins.rates(columns.ended_ns[columns.failed]), RED),
    }
    if not columns.failed.any():
        del kinds["failed"]
    rows: list[Row] = [
        {"at_s": at, "per_s": per_s, "what": what}
        for what, (rates, _) in kinds.items()
        for at, per_s in zip(rounded(bins.middles_s), rounded(rates), strict=True)
    ]
    drawn = {
        "x": _x(bins, time),
        "y": alt.Y("per_s:Q", title=f"requests per {time} s", stack=None),
        "color": colour("what", list(kinds), [shade for _, shade in kinds.values()]),
        "tooltip": ["at_s:Q", "per_s:Q", "what:N"],
    }
    due = [row for row in rows if row["what"] == "due"]
    others = [row for row in rows if row["what"] != "due"]
    area = alt.Chart(data_of(due)).mark_area(interpolate="step", opacity=0.3).encode(**drawn)
    lines = alt.Chart(data_of(others)).mark_line(interpolate="step", strokeWidth=1.8)
    return TitledChart(
        title=f"Requests{whose} over time: asked and achieved",
        about=f"In pieces of {bins.width_s:.3g} {time} s. Asked: {header.arrivals.words}.",
        chart=alt.layer(area, lines.encode(**drawn)).properties(width=WIDTH, height=HEIGHT),
    )


def tokens_over_time(of_class: Mapping[str, Columns], bins: Bins, time: str) -> TitledChart:
    """Output tokens per second, class on class."""
    rows: list[Row] = []
    for name, columns in of_class.items():
        # A chunk's tokens are not told apart by the server: a reply's are shared evenly.
        share = columns.output_tokens / np.maximum(columns.chunks, 1)
        rates = bins.rates(columns.chunk_ns, np.repeat(share, columns.chunks))
        rows.extend(
            {"at_s": at, "per_s": per_s, "class": name}
            for at, per_s in zip(rounded(bins.middles_s), rounded(rates), strict=True)
        )
    chart = (
        alt.Chart(data_of(rows))
        .mark_area(interpolate="step", opacity=0.75)
        .encode(
            x=_x(bins, time),
            y=alt.Y("per_s:Q", title=f"output tokens per {time} s", stack="zero"),
            color=colour("class", list(of_class), symbol="square")
            if len(of_class) > 1
            else alt.value(BLUE),
            tooltip=["at_s:Q", "per_s:Q", "class:N"],
        )
    )
    return TitledChart(
        title="Output tokens over time",
        about=f"In pieces of {bins.width_s:.3g} {time} s"
        + (", one class on the other." if len(of_class) > 1 else "."),
        chart=chart.properties(width=WIDTH, height=HEIGHT),
    )


def in_flight_over_time(columns: Columns, bins: Bins, time: str) -> TitledChart:
    """Requests under way at once, and those that the client still held."""
    kinds = {
        "in flight": (under_way(bins, columns.sent_ns, columns.ended_ns), BLUE),
        "due, not yet sent": (under_way(bins, columns.intended_ns, columns.sent_ns), ORANGE),
    }
    rows: list[Row] = [
        {"at_s": at, "mean": mean, "most": most, "what": what}
        for what, ((means, mosts), _) in kinds.items()
        for at, mean, most in zip(
            rounded(bins.middles_s), rounded(means), rounded(mosts), strict=True
        )
    ]
    x = _x(bins, time)
    shades = colour("what", list(kinds), [shade for _, shade in kinds.values()])
    tooltip = ["at_s:Q", "mean:Q", "most:Q", "what:N"]
    title = "requests at once"
    area = (
        alt.Chart(data_of(rows))
        .mark_area(interpolate="step", opacity=0.3)
        .encode(x=x, y=alt.Y("mean:Q", title=title, stack=None), color=shades, tooltip=tooltip)
    )
    line = (
        alt.Chart(data_of(rows))
        .mark_line(interpolate="step", strokeWidth=1.5)
        .encode(x=x, y=alt.Y("most:Q", title=title), color=shades, tooltip=tooltip)
    )
    return TitledChart(
        title="Requests in flight over time",
        about=f"Area: the mean in pieces of {bins.width_s:.3g} {time} s; line: the most.",
        chart=alt.layer(area, line).properties(width=WIDTH, height=HEIGHT),
    )


def _x(bins: Bins, time: str) -> alt.X:
    edges_s = bins.edges_s
    domain = [float(min(0.0, edges_s[0])), float(edges_s[-1])]
    title = f"{time} s since the run's start"
    return alt.X("at_s:Q", title=title, scale=alt.Scale(domain=domain, nice=False))
