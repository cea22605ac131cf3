"""How latencies of a run are distributed."""

from typing import Final

import altair as alt
import numpy as np

from loadgen.measures.columns import Columns
from loadgen.measures.run_measures import RunMeasures
from loadgen.measures.samples import samples_of
from loadgen.records.arrays import Float64s
from loadgen.reports.run_series import bars, cumulative
from reporting.charts import (
    BLUE,
    GREEN,
    HEIGHT,
    INK,
    LIGHT_BLUE,
    PURPLE,
    WIDTH,
    Chart,
    Row,
    TitledChart,
    colour,
    data_of,
    logarithmic,
    rounded,
)
from reporting.numbers import number

_CURVES: Final = {
    "ttft_ms": ("TTFT", BLUE),
    "ttft_from_send_ms": ("TTFT, from send", LIGHT_BLUE),
    "tpot_ms": ("TPOT", GREEN),
    "e2e_ms": ("E2E", PURPLE),
    "e2e_from_send_ms": ("E2E, from send", "#da77f2"),
}


def latency_distributions(
    columns: Columns, measures: RunMeasures, name: str, whose: str
) -> TitledChart:
    """TTFT, TPOT and E2E as cumulative curves, with the limits of the class's SLO."""
    samples = samples_of(columns, measures.dilation)
    labels = {key: label for key, (label, _) in _CURVES.items() if key in samples}
    rows: list[Row] = []
    low, high = np.inf, 0.0
    for key, label in labels.items():
        values = np.maximum(samples[key].values, 1e-3)
        at_ms, share = cumulative(values)
        low, high = min(low, float(at_ms[0])), max(high, float(at_ms[-1]))
        rows.extend(
            {"ms": ms, "share": part, "measure": label}
            for ms, part in zip(rounded(at_ms), rounded(share), strict=True)
        )
    x = alt.X("ms:Q", title=f"{measures.time} ms", **logarithmic(low, high))
    curves: Chart = (
        alt.Chart(data_of(rows))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("share:Q", title="share at or below", axis=alt.Axis(format=".0%")),
            color=colour("measure", list(labels.values()), [_CURVES[key][1] for key in labels]),
            tooltip=["ms:Q", alt.Tooltip("share:Q", format=".3%"), "measure:N"],
        )
    )
    slo = measures.classes[name].slo if name in measures.classes else None
    bounds: list[Row] = [
        {
            "ms": bound.limit,
            "measure": labels[bound.measure],
            "words": f"{labels[bound.measure]} limit {number(bound.limit)}",
        }
        for bound in (slo.bounds if slo else ())
        if bound.measure in labels and low <= bound.limit <= high
    ]
    if bounds:
        rules = alt.Chart(data_of(bounds)).encode(x="ms:Q", color="measure:N")
        words = rules.mark_text(y=-8, fontWeight="bold").encode(text="words:N")  # above the chart
        curves = alt.layer(rules.mark_rule(strokeDash=[4, 3], strokeWidth=1.5), curves, words)
    return TitledChart(
        title=f"Distribution of latencies{whose}",
        about="The share of requests that took at most so long."
        + (f" Dashed: the limits of the SLO {slo.words}." if slo and bounds else ""),
        chart=curves.properties(width=WIDTH, height=HEIGHT + 50),
    )


def gap_histogram(values: Float64s, time: str, whose: str) -> TitledChart:
    """A histogram of `values`, [gaps] in ms, of which one is above 0."""
    edges, share = bars(values)
    rows: list[Row] = [
        {"from_ms": low, "to_ms": high, "share": part}
        for low, high, part in zip(
            rounded(edges[:-1]), rounded(edges[1:]), rounded(share), strict=True
        )
    ]
    drawn = (
        alt.Chart(data_of(rows))
        .mark_rect(color=BLUE, opacity=0.8)
        .encode(
            x=alt.X(
                "from_ms:Q",
                title=f"inter-token latency, {time} ms",
                **logarithmic(float(edges[0]), float(edges[-1])),
            ),
            x2="to_ms:Q",
            y=alt.Y("share:Q", title="share of the gaps", axis=alt.Axis(format="%")),
            y2=alt.Y2Datum(0),
            tooltip=["from_ms:Q", "to_ms:Q", alt.Tooltip("share:Q", format=".3%")],
        )
    )
    marks: list[Row] = [
        {"from_ms": float(np.percentile(values, at)), "words": f"p{at}"} for at in (50, 99)
    ]
    marks = [mark for mark in marks if float(mark["from_ms"] or 0) >= float(edges[0])]
    rules = alt.Chart(data_of(marks)).encode(x="from_ms:Q")
    lines = rules.mark_rule(color=INK, strokeDash=[4, 3])
    words = rules.mark_text(align="left", dx=4, dy=8, y=0, color=INK).encode(text="words:N")
    return TitledChart(
        title=f"Inter-token latency{whose}",
        about=f"{values.size:,} gaps, on a logarithmic axis.",
        chart=alt.layer(drawn, lines, words).properties(width=WIDTH, height=HEIGHT),
    )
