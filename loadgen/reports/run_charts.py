"""Charts of one run: latency over time and as distributions, arrivals, requests in flight."""

from collections.abc import Iterator, Mapping
from typing import Final

import altair as alt
import numpy as np

from loadgen.measures.columns import Columns
from loadgen.measures.run_measures import RunMeasures
from loadgen.measures.samples import Samples, samples_of, values_ms
from loadgen.records.arrays import Float64s
from loadgen.records.run_record import ClassHeader, RunRecord
from loadgen.reports.run_series import (
    Bins,
    bars,
    cumulative,
    percentile_in_bins,
    shown_points,
    under_way,
)
from reporting import charts
from reporting.numbers import number

DUE: Final = "from when due"
SENT: Final = "from send"
_CURVES: Final = {
    "ttft_ms": ("TTFT", charts.BLUE),
    "ttft_from_send_ms": ("TTFT, from send", charts.LIGHT_BLUE),
    "tpot_ms": ("TPOT", charts.GREEN),
    "e2e_ms": ("E2E", charts.PURPLE),
    "e2e_from_send_ms": ("E2E, from send", "#da77f2"),
}


def run_charts(record: RunRecord, measures: RunMeasures) -> Iterator[charts.TitledChart]:
    """Draw all with data; of a simulated run nothing of its sending."""
    if not record.results:
        return
    dilation, simulated = measures.dilation, record.header.simulated
    whole = Columns.of(record.results)
    bins = Bins.of(whole, dilation)
    headers = record.header.classes
    of_class = {headers[0].name: whole}
    if len(headers) > 1:
        of_class = {
            header.name: Columns.of([r for r in record.results if r.traffic_class == header.name])
            for header in headers
        }
    shown = [header for header in headers if len(of_class[header.name])]
    whose = {each.name: f" of {each.name}" if len(headers) > 1 else "" for each in shown}
    for header in shown:
        if of_class[header.name].streamed.any():
            columns, of = of_class[header.name], whose[header.name]
            yield ttft_over_time(columns, bins, measures.time, of, simulated=simulated)
            if columns.spread.any():
                yield tpot_over_time(columns, bins, measures.time, of)
    for header in shown:
        columns = of_class[header.name]
        yield rates_over_time(
            header, columns, bins, measures.time, whose[header.name], simulated=simulated
        )
    yield tokens_over_time({each.name: of_class[each.name] for each in shown}, bins, measures.time)
    yield in_flight_over_time(whole, bins, measures.time, simulated=simulated)
    for header in shown:
        samples = samples_of(of_class[header.name], dilation, simulated=simulated)
        if of_class[header.name].streamed.any():
            yield latency_distributions(samples, measures, header.name, whose[header.name])
        gaps = samples.get("itl_ms")
        if gaps is not None and (gaps.values > 0).any():
            yield gap_histogram(gaps.values, measures.time, whose[header.name])


def ttft_over_time(
    columns: Columns, bins: Bins, time: str, whose: str, *, simulated: bool
) -> charts.TitledChart:
    """TTFT from due time and from the send; at least one request streamed a reply."""
    kept = columns.where(columns.streamed)
    kinds = {DUE: values_ms(kept, "ttft_ms", bins.dilation)}
    about = ""
    if not simulated:
        kinds[SENT] = values_ms(kept, "ttft_from_send_ms", bins.dilation)
        about = (
            " Where the lines part, requests were sent late: what is counted from the send alone "
            "does not show it."
        )
    return _over_time(f"Time to first token{whose}", "TTFT", kept, bins, time, kinds, about)


def tpot_over_time(columns: Columns, bins: Bins, time: str, whose: str) -> charts.TitledChart:
    """TPOT of replies with a time between tokens, at least one."""
    kept = columns.where(columns.spread)
    kinds = {DUE: values_ms(kept, "tpot_ms", bins.dilation)}
    return _over_time(f"Time per output token{whose}", "TPOT", kept, bins, time, kinds)


def _over_time(
    title: str,
    label: str,
    kept: Columns,
    bins: Bins,
    time: str,
    kinds: Mapping[str, Float64s],
    about: str = "",
) -> charts.TitledChart:
    """A latency of `kept` by when they were due: dots of the first of `kinds`, lines of each."""
    shown = {words: np.maximum(values, 1e-3) for words, values in kinds.items()}
    first, *_ = shown.values()
    chosen = shown_points(bins, kept.intended_ns, first)
    at_s = kept.intended_ns[chosen] / (1e9 * bins.dilation)
    points = charts.rows_of(at_s=at_s, ms=first[chosen])
    low, high = min(float(each.min()) for each in shown.values()), float(first.max())
    y = alt.Y("ms:Q", title=f"{label}, {time} ms", **charts.logarithmic(low, high))
    x = _x(bins, time)
    dots = (
        charts.chart_of(points)
        .mark_circle(size=12, opacity=0.35, color=charts.GREY)
        .encode(x=x, y=y, tooltip=["at_s:Q", "ms:Q"])
    )
    # The one from the send is thin and goes on top: where both are the same, both are seen.
    of_each = [
        charts.chart_of({**row, "counted": words} for row in _percentile_rows(bins, kept, values))
        .mark_line(interpolate="linear", strokeWidth=width, opacity=1)
        .encode(
            x=x,
            y=y,
            color=charts.colour("counted", [*shown], (charts.LIGHT_BLUE, charts.NAVY)),
            strokeDash=charts.dashes("line", ("p50", "p99")),
            tooltip=["at_s:Q", "ms:Q", "counted:N", "line:N"],
        )
        for (words, values), width in zip(shown.items(), (4.5, 1.4), strict=False)
    ]
    some = "" if len(points) == len(kept) else f" ({len(points):,} of {len(kept):,})"
    return charts.titled(
        f"{title} over time",
        f"Dots: requests{some}, at the time when they were due.{about}",
        dots,
        *of_each,
    )


def _percentile_rows(bins: Bins, kept: Columns, values: Float64s) -> list[charts.Row]:
    percentiles = {
        f"p{each}": percentile_in_bins(bins, kept.intended_ns, values, each) for each in (50, 99)
    }
    return charts.series_rows(("at_s", bins.middles_s), "ms", percentiles, what="line")


def rates_over_time(
    header: ClassHeader, columns: Columns, bins: Bins, time: str, whose: str, *, simulated: bool
) -> charts.TitledChart:
    """Requests of a class due, sent, completed and failed per second."""
    kinds = {
        "due": (bins.rates(columns.intended_ns), charts.GREY),
        "sent": (bins.rates(columns.sent_ns), charts.ORANGE),
        "completed": (bins.rates(columns.last_ns[columns.done]), charts.GREEN),
        "failed": (bins.rates(columns.ended_ns[columns.failed]), charts.RED),
    }
    if not columns.failed.any():
        del kinds["failed"]
    if simulated:
        del kinds["sent"]
    rates = {what: values for what, (values, _) in kinds.items()}
    rows = charts.series_rows(("at_s", bins.middles_s), "per_s", rates)
    drawn = {
        "x": _x(bins, time),
        "y": alt.Y("per_s:Q", title=f"requests per {time} s", stack=None),
        "color": charts.colour("what", list(kinds), [shade for _, shade in kinds.values()]),
        "tooltip": ["at_s:Q", "per_s:Q", "what:N"],
    }
    due = [row for row in rows if row["what"] == "due"]
    others = [row for row in rows if row["what"] != "due"]
    area = charts.chart_of(due).mark_area(interpolate="step", opacity=0.3).encode(**drawn)
    lines = charts.chart_of(others).mark_line(interpolate="step", strokeWidth=1.8)
    return charts.titled(
        f"Requests{whose} over time: asked and achieved",
        f"In pieces of {bins.width_s:.3g} {time} s. Asked: {header.arrivals.words}.",
        area,
        lines.encode(**drawn),
    )


def tokens_over_time(of_class: Mapping[str, Columns], bins: Bins, time: str) -> charts.TitledChart:
    """Output tokens per second, stacked by class."""
    rates = {}
    for name, columns in of_class.items():
        # A chunk's tokens are not told apart by the server: a reply's are shared evenly.
        share = columns.output_tokens / np.maximum(columns.chunks, 1)
        rates[name] = bins.rates(columns.chunk_ns, np.repeat(share, columns.chunks))
    rows = charts.series_rows(("at_s", bins.middles_s), "per_s", rates, what="class")
    chart = (
        charts.chart_of(rows)
        .mark_area(interpolate="step", opacity=0.75)
        .encode(
            x=_x(bins, time),
            y=alt.Y("per_s:Q", title=f"output tokens per {time} s", stack="zero"),
            color=charts.colour("class", list(of_class), symbol="square")
            if len(of_class) > 1
            else alt.value(charts.BLUE),
            tooltip=["at_s:Q", "per_s:Q", "class:N"],
        )
    )
    return charts.titled(
        "Output tokens over time",
        f"In pieces of {bins.width_s:.3g} {time} s"
        + (", one class on the other." if len(of_class) > 1 else "."),
        chart,
    )


def in_flight_over_time(
    columns: Columns, bins: Bins, time: str, *, simulated: bool
) -> charts.TitledChart:
    """Concurrent requests, and due ones not yet sent."""
    kinds = {
        "in flight": (under_way(bins, columns.sent_ns, columns.ended_ns), charts.BLUE),
        "due, not yet sent": (under_way(bins, columns.intended_ns, columns.sent_ns), charts.ORANGE),
    }
    if simulated:
        del kinds["due, not yet sent"]
    rows: list[charts.Row] = [
        {**row, "what": what}
        for what, ((means, mosts), _) in kinds.items()
        for row in charts.rows_of(at_s=bins.middles_s, mean=means, most=mosts)
    ]
    x = _x(bins, time)
    shades = charts.colour("what", list(kinds), [shade for _, shade in kinds.values()])
    tooltip = ["at_s:Q", "mean:Q", "most:Q", "what:N"]
    title = "requests at once"
    area = (
        charts.chart_of(rows)
        .mark_area(interpolate="step", opacity=0.3)
        .encode(x=x, y=alt.Y("mean:Q", title=title, stack=None), color=shades, tooltip=tooltip)
    )
    line = (
        charts.chart_of(rows)
        .mark_line(interpolate="step", strokeWidth=1.5)
        .encode(x=x, y=alt.Y("most:Q", title=title), color=shades, tooltip=tooltip)
    )
    return charts.titled(
        "Requests in flight over time",
        f"Area: the mean in pieces of {bins.width_s:.3g} {time} s; line: the most.",
        area,
        line,
    )


def _x(bins: Bins, time: str) -> alt.X:
    edges_s = bins.edges_s
    domain = [float(min(0.0, edges_s[0])), float(edges_s[-1])]
    title = f"{time} s since the run's start"
    return alt.X("at_s:Q", title=title, scale=alt.Scale(domain=domain, nice=False))


def latency_distributions(
    samples: Mapping[str, Samples], measures: RunMeasures, name: str, whose: str
) -> charts.TitledChart:
    """TTFT, TPOT and E2E as cumulative curves, with the SLO's limits."""
    labels = {key: label for key, (label, _) in _CURVES.items() if key in samples}
    rows: list[charts.Row] = []
    low, high = np.inf, 0.0
    for key, label in labels.items():
        values = np.maximum(samples[key].values, 1e-3)
        at_ms, share = cumulative(values)
        low, high = min(low, float(at_ms[0])), max(high, float(at_ms[-1]))
        rows += [{**row, "measure": label} for row in charts.rows_of(ms=at_ms, share=share)]
    x = alt.X("ms:Q", title=f"{measures.time} ms", **charts.logarithmic(low, high))
    curves: charts.Chart = (
        charts.chart_of(rows)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("share:Q", title="share at or below", axis=alt.Axis(format=".0%")),
            color=charts.colour(
                "measure", list(labels.values()), [_CURVES[key][1] for key in labels]
            ),
            tooltip=["ms:Q", alt.Tooltip("share:Q", format=".3%"), "measure:N"],
        )
    )
    slo = measures.classes[name].slo if name in measures.classes else None
    bounds: list[charts.Row] = [
        {
            "ms": bound.limit,
            "measure": labels[bound.measure],
            "words": f"{labels[bound.measure]} limit {number(bound.limit)}",
        }
        for bound in (slo.bounds if slo else ())
        if bound.measure in labels and low <= bound.limit <= high
    ]
    if bounds:
        rules = charts.chart_of(bounds).encode(x="ms:Q", color="measure:N")
        words = rules.mark_text(y=-8, fontWeight="bold").encode(text="words:N")  # above the chart
        curves = alt.layer(rules.mark_rule(strokeDash=[4, 3], strokeWidth=1.5), curves, words)
    return charts.titled(
        f"Distribution of latencies{whose}",
        "The share of requests that took at most so long."
        + (f" Dashed: the limits of the SLO {slo.words}." if slo and bounds else ""),
        curves,
        height=charts.HEIGHT + 50,
    )


def gap_histogram(values: Float64s, time: str, whose: str) -> charts.TitledChart:
    """A histogram of `values`, [gaps] in ms, at least one above 0."""
    edges, share = bars(values)
    rows = charts.rows_of(from_ms=edges[:-1], to_ms=edges[1:], share=share)
    drawn = (
        charts.chart_of(rows)
        .mark_rect(color=charts.BLUE, opacity=0.8)
        .encode(
            x=alt.X(
                "from_ms:Q",
                title=f"inter-token latency, {time} ms",
                **charts.logarithmic(float(edges[0]), float(edges[-1])),
            ),
            x2="to_ms:Q",
            y=alt.Y("share:Q", title="share of the gaps", axis=alt.Axis(format="%")),
            y2=alt.Y2Datum(0),
            tooltip=["from_ms:Q", "to_ms:Q", alt.Tooltip("share:Q", format=".3%")],
        )
    )
    marks: list[charts.Row] = [
        {"from_ms": float(np.percentile(values, at)), "words": f"p{at}"} for at in (50, 99)
    ]
    marks = [mark for mark in marks if float(mark["from_ms"] or 0) >= float(edges[0])]
    rules = charts.chart_of(marks).encode(x="from_ms:Q")
    lines = rules.mark_rule(color=charts.INK, strokeDash=[4, 3])
    words = rules.mark_text(align="left", dx=4, dy=8, y=0, color=charts.INK).encode(text="words:N")
    return charts.titled(
        f"Inter-token latency{whose}",
        f"{values.size:,} gaps, on a logarithmic axis.",
        drawn,
        lines,
        words,
    )
