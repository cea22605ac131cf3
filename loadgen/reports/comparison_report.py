"""The report of a comparison: differences between two sides, judged against noise."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import altair as alt

from loadgen.measures.comparison import Comparison, Difference, Side
from loadgen.measures.definitions import DISTRIBUTIONS, ENERGY, RATES
from loadgen.records.plain_number import counted
from reporting import charts
from reporting.document import Cell, Column, Document, Facts, FigureRow, Table, Tone, table_of
from reporting.numbers import NOTHING, signed_percent

_DEFINITIONS: Final = {each.name: each for each in (*DISTRIBUTIONS, *RATES, *ENERGY)}
_TONES: Final[Mapping[str, Tone]] = {
    "better": "good",
    "worse": "bad",
    "different": "plain",
    "within noise": "dim",
    "unknown": "dim",
}

_TRAFFIC: Final = ("api", "workload", "prompts", "arrivals", "requests")
"""Settings of `Comparison.apart` that make the traffic, perhaps after a class's name and `: `."""

if TYPE_CHECKING:
    from reporting.charts import TitledChart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparisonReport:
    """Two sides, figure by figure; b is judged against a."""

    comparison: Comparison

    def document(self) -> Document:
        """For people."""
        found = self.comparison
        classes = dict.fromkeys(each.traffic_class for each in found.differences)
        return Document(
            title=f"UltraServe comparison: {sides_words(found)}",
            subtitle=f"{found.time} time",
            verdict=verdict_words(found),
            sections=(
                Facts(title="sides", rows=tuple(_sides(found))),
                *(_table(found, name) for name in classes),
            ),
            notes=found.notes,
        )

    def fields(self) -> object:
        """For programs."""
        found = self.comparison
        return {
            "time": found.time,
            "a": found.a,
            "b": found.b,
            "method": found.method,
            "settings_apart": found.apart,
            "beyond_noise": len(found.beyond_noise),
            "differences": [
                {**asdict(each), "unit": _unit(each), "beyond_noise": each.beyond_noise}
                for each in found.differences
            ],
            "notes": found.notes,
        }

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: the relative difference, beside both values."""
        return tuple(
            FigureRow(
                traffic_class=each.traffic_class or "all",
                figure=each.figure,
                statistic=each.statistic,
                unit="relative difference",
                value=each.relative,
                low=each.low,
                high=each.high,
                extra={
                    "a": "" if each.a is None else repr(each.a),
                    "b": "" if each.b is None else repr(each.b),
                    "p_value": "" if each.p_value is None else repr(each.p_value),
                    "verdict": each.verdict,
                    "time": self.comparison.time,
                },
            )
            for each in self.comparison.differences
        )

    def charts(self) -> "tuple[TitledChart, ...]":
        """The differences of all classes together."""
        from loadgen.reports.comparison_report import (  # noqa: PLC0415 - Altair takes a while
            comparison_chart,
        )

        return comparison_chart(self.comparison)


def sides_words(found: Comparison) -> str:
    """Names of both sides: their labels if those differ."""
    if found.a.label == found.b.label:
        return "b against a"
    return f"{found.b.label} against {found.a.label}"


def verdict_words(found: Comparison) -> str:
    """The outcome in a few words, after any difference in traffic."""
    apart = dict.fromkeys(name.rpartition(": ")[2] for name in found.apart)
    traffic = [name for name in apart if name in _TRAFFIC]
    warned = f"not the same traffic ({', '.join(traffic)} differ): " if traffic else ""
    verdicts = [each.verdict for each in found.differences]
    unknown = len(found.unknown)
    known = len(found.differences) - unknown
    if not known:
        return f"{warned}{unknown} unknown, no figure can be compared"
    if not found.beyond_noise:
        left = f"; {unknown} unknown" if unknown else ""
        return f"{warned}none of {counted(known, 'figure')} differs beyond noise{left}"
    names = ("better", "worse", "different", "within noise", "unknown")
    said = ", ".join(f"{verdicts.count(name)} {name}" for name in names if name in verdicts)
    return f"{warned}of {counted(len(verdicts), 'figure')} {said}"


def figure_words(difference: Difference) -> str:
    """`TTFT p99`, `output tokens/s`."""
    definition = _DEFINITIONS.get(difference.figure)
    label = difference.figure if definition is None else definition.label
    return f"{label} {difference.statistic}".strip()


def _unit(difference: Difference) -> str:
    definition = _DEFINITIONS.get(difference.figure)
    return "" if definition is None else definition.unit


def _sides(found: Comparison) -> Iterator[tuple[str, str]]:
    for letter, side in (("a", found.a), ("b", found.b)):
        yield f"{letter}: {side.label}", _side(side)
        yield "", side.command
    for name, (of_a, of_b) in found.apart.items():
        yield f"{name} differs", f"a: {of_a}"
        yield "", f"b: {of_b}"
    yield "method", found.method


def _side(side: Side) -> str:
    completed = counted(side.completed, "request")
    return f"{counted(side.runs, 'run')}, {completed} completed, {side.failed:,} failed"


def _table(found: Comparison, traffic_class: str) -> Table:
    whose = f" of {traffic_class}" if traffic_class else ""
    return table_of(
        _COLUMNS,
        [each for each in found.differences if each.traffic_class == traffic_class],
        title=f"differences{whose}, in {found.time} time",
    )


def _judged(each: Difference, words: str) -> Cell:
    return Cell(words=words, tone=_TONES[each.verdict])


def _between(each: Difference) -> str:
    if each.low is None or each.high is None:
        return NOTHING
    return f"{signed_percent(each.low)} .. {signed_percent(each.high)}"


def _relative(each: Difference) -> str:
    return NOTHING if each.relative is None else signed_percent(each.relative)


_COLUMNS: Final[tuple[Column[Difference], ...]] = (
    Column("", figure_words, align="left"),
    Column("unit", _unit, align="left", rank=1, tone="dim"),
    Column("a", lambda each: each.a),
    Column("b", lambda each: each.b),
    Column("difference", lambda each: _judged(each, _relative(each))),
    Column("95 % interval", _between, tone="dim"),
    Column("p", lambda each: each.p_value, ".3f", rank=2, tone="dim"),
    Column("", lambda each: _judged(each, each.verdict), align="left"),
)


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
