"""Charts of a sweep: throughput and latency with the knee, and the two Pareto curves."""

from collections.abc import Iterator, Sequence
from typing import Final

import altair as alt

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import SweepRecord
from loadgen.reports.sweep_tables import LOAD_WORDS, load_and_unit
from reporting import charts
from reporting.numbers import number

_LEAST_MS: Final = 1e-3  # of a logarithmic axis
_BEST: Final = "beaten by no other"
_BEATEN: Final = "beaten by another"
_ROOM: Final = 34  # for the words of two marks between legend and chart
_SHADES: Final = {"TTFT": charts.BLUE, "TPOT": charts.GREEN, "E2E": charts.PURPLE}


def sweep_charts(sweep: SweepRecord) -> Iterator[charts.TitledChart]:
    """Draw all with data."""
    throughput, latency = _throughput_rows(sweep), _latency_rows(sweep)
    if throughput:
        yield _throughput(sweep, throughput)
    if latency:
        yield _latency(sweep, latency)
    for title, name, places in (
        ("tokens/s per MW", "tokens_per_s_per_mw", sweep.pareto_per_mw),
        ("tokens/s per chip", "tokens_per_s_per_chip", sweep.pareto_per_chip),
    ):
        rows = _pareto_rows(sweep, name, places)
        if rows:
            yield _pareto(sweep, rows, title)


def _load_x(sweep: SweepRecord) -> alt.X:
    asked = "asked" if sweep.axis == "rate" else "allowed"
    title = f"load {asked}, {LOAD_WORDS[sweep.axis]}"
    if sweep.axis == "rate":
        title = f"load asked, sessions per {sweep.time} s"
    loads = [point.load for point in sweep.points]
    return alt.X("load:Q", title=title, **charts.logarithmic(min(loads), max(loads)))


def _marks(sweep: SweepRecord) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Vertical lines at the knee and the SLO's highest load, and their words.

    The lines go below the data, the words above the chart, where no line crosses them.
    """
    rows: list[charts.Row] = []
    if sweep.knee is not None:
        rows.append({"load": sweep.knee.load, "words": f"knee {number(sweep.knee.load)}", "y": -8})
    if sweep.best is not None and sweep.best.load is not None:
        words = f"SLO kept to {number(sweep.best.load)}"
        y = -8 if not rows else -22
        rows.append({"load": sweep.best.load, "words": words, "y": y})
    if not rows:
        return [], []
    base = charts.chart_of(rows).encode(x="load:Q")
    words = base.mark_text(color=charts.INK, fontWeight="bold").encode(
        text="words:N", y=alt.Y("y:Q", scale=None)
    )
    return [base.mark_rule(color=charts.GREY, strokeDash=[5, 4])], [words]


def _rows(
    sweep: SweepRecord, name: str, key: str, *, least: float = 0.0, **words: str
) -> Iterator[charts.Row]:
    """A figure's estimates above `least`, under `key`, with the ends of their intervals."""
    for point in sweep.points:
        found: Estimate | None = getattr(point.figures, name)
        if found is not None and found.value >= least:
            low = found.value if found.low is None else found.low
            high = found.value if found.high is None else found.high
            yield {
                "load": point.load,
                key: found.value,
                "low": max(low, least),
                "high": high,
                **words,
            }


def _throughput_rows(sweep: SweepRecord) -> list[charts.Row]:
    return [
        *_rows(sweep, "requests_per_s", "per_s", what="completed"),
        *_rows(sweep, "goodput_per_s", "per_s", what="within the SLO (goodput)"),
    ]


def _throughput(sweep: SweepRecord, rows: Sequence[charts.Row]) -> charts.TitledChart:
    names = list(dict.fromkeys(str(row["what"]) for row in rows))
    title = f"requests per {sweep.time} s"
    drawn = charts.chart_of(rows).encode(
        x=_load_x(sweep),
        color=charts.colour("what", names, (charts.BLUE, charts.GREEN), room=_ROOM),
        tooltip=["load:Q", "per_s:Q", "low:Q", "high:Q", "what:N"],
    )
    spans = drawn.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title=title), y2="high:Q")
    means = drawn.mark_line(strokeWidth=2, opacity=0.8).encode(
        y=alt.Y("mean(per_s):Q", title=title),
        strokeDash=charts.dashes("what", names, room=_ROOM),
        tooltip=[],
    )
    dots = drawn.mark_point(size=45, opacity=1, filled=True).encode(
        y=alt.Y("per_s:Q", title=title), shape=charts.shapes("what", names)
    )
    rules, words = _marks(sweep)
    return charts.titled(
        "Throughput against load",
        "Each point with its 95 % interval; the line goes through the mean of each load.",
        *rules,
        means,
        spans,
        dots,
        *words,
    )


def _latency_rows(sweep: SweepRecord) -> list[charts.Row]:
    return [
        row
        for measure in _SHADES
        for each in ("p50", "p99")
        for row in _rows(
            *(sweep, f"{measure.lower()}_{each}_ms", "ms"),
            least=_LEAST_MS,
            measure=measure,
            percentile=each,
        )
    ]


def _latency(sweep: SweepRecord, rows: Sequence[charts.Row]) -> charts.TitledChart:
    numbers = [float(row["ms"] or 0) for row in rows]
    shown = [name for name in _SHADES if any(row["measure"] == name for row in rows)]
    axis = charts.logarithmic(min(numbers), max(numbers))
    title = f"{sweep.time} ms"
    drawn = charts.chart_of(rows).encode(
        x=_load_x(sweep),
        color=charts.colour("measure", shown, [_SHADES[name] for name in shown], room=_ROOM),
        tooltip=["load:Q", "ms:Q", "low:Q", "high:Q", "measure:N", "percentile:N"],
    )
    lines = drawn.mark_line(strokeWidth=2, opacity=0.8).encode(
        y=alt.Y("mean(ms):Q", title=title, **axis),
        strokeDash=charts.dashes("percentile", ("p50", "p99"), room=_ROOM),
        tooltip=[],
    )
    spans = drawn.mark_rule(strokeWidth=1.2, opacity=0.7).encode(
        y=alt.Y("low:Q", title=title, **axis), y2="high:Q"
    )
    dots = drawn.mark_circle(size=40, opacity=1).encode(y=alt.Y("ms:Q", title=title, **axis))
    rules, words = _marks(sweep)
    return charts.titled(
        "Latency against load",
        "Each point with its 95 % interval. Latencies count from when requests were due.",
        *rules,
        lines,
        spans,
        dots,
        *words,
        height=charts.HEIGHT + 70,
    )


def _pareto_rows(sweep: SweepRecord, name: str, places: tuple[int, ...]) -> list[charts.Row]:
    rows: list[charts.Row] = []
    for place, point in enumerate(sweep.points):
        user, value = point.figures.interactivity_p50, getattr(point.figures, name)
        if user is not None and value is not None:
            rows.append(
                {
                    "user": user.value,
                    "value": value,
                    "load": load_and_unit(sweep, point.load),
                    "number": number(point.load),
                    "best": _BEST if place in places else _BEATEN,
                }
            )
    return rows


def _pareto(sweep: SweepRecord, rows: Sequence[charts.Row], title: str) -> charts.TitledChart:
    best = [row for row in rows if row["best"] == _BEST]
    x = alt.X(
        "user:Q",
        title=f"interactivity, p50: output tokens per {sweep.time} s and user",
        scale=alt.Scale(zero=False, padding=30),
    )
    y = alt.Y("value:Q", title=f"output {title}, {sweep.time} s", scale=alt.Scale(zero=True))
    line = (
        charts.chart_of(best)
        .mark_line(color=charts.ORANGE, strokeWidth=2, interpolate="linear")
        .encode(x=x, y=y, order="user:Q")
    )
    dots = (
        charts.chart_of(rows)
        .mark_circle(size=80, opacity=1)
        .encode(
            x=x,
            y=y,
            color=charts.colour(
                "best", (_BEST, _BEATEN), (charts.ORANGE, charts.GREY), symbol="circle"
            ),
            tooltip=["load:N", "user:Q", "value:Q"],
        )
    )
    words = (
        charts.chart_of(best).mark_text(dy=-12, color=charts.INK).encode(x=x, y=y, text="number:N")
    )
    return charts.titled(
        f"Output {title} against interactivity",
        f"Numbers at the points are the load: {LOAD_WORDS[sweep.axis]}. "
        "Further up and to the right is better.",
        line,
        dots,
        words,
        height=charts.HEIGHT + 90,
    )
