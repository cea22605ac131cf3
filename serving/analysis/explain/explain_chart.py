"""The waterfall of an explained step as a picture."""

from typing import Final

import altair as alt

from reporting.charts import COLOURS, GREY, INK, Row, chart_of, colour, picture
from serving.analysis.explain.explain_report import LEAST_SHARE
from serving.analysis.explain.explanation import Explanation

_MS: Final = 1e6
_WIDTH, _BAR = 620, 17
_STEP: Final = "the step"
_ENGINES: Final = ("dma", "waiting", "overhead", "collectives", "host", "vector", "tensor")
_COLOUR_OF: Final = {**dict(zip(_ENGINES, COLOURS, strict=True)), _STEP: INK}


def explain_chart(found: Explanation) -> alt.VConcatChart:
    """A bar for each term, from where the one before ends; what hides goes back."""
    rows = _rows(found)
    names = [str(row["term"]) for row in rows]
    engines = list(dict.fromkeys(str(row["waits for"]) for row in rows))
    colours = [_COLOUR_OF.get(each, GREY) for each in engines]
    y = alt.Y(
        "term:N", sort=names, title=None, axis=alt.Axis(labelLimit=320, grid=False, ticks=False)
    )
    bars = (
        chart_of(rows)
        .mark_bar(height=_BAR - 5)
        .encode(
            x=alt.X("from:Q", title="ms of the step"),
            x2="to:Q",
            y=y,
            color=colour("waits for", engines, colours, symbol="square"),
            tooltip=[alt.Tooltip(f"{name}:N") for name in ("term", "waits for", "ms", "law")],
        )
    )
    ends = chart_of(rows).mark_text(align="left", dx=4, fontSize=10, color=GREY)
    words = ends.encode(x="end:Q", y=y, text="ms:N")
    question = found.question
    partition = question.candidate.partition
    return picture(
        f"{question.subject}: {found.step_ns / _MS:,.4g} ms",
        (
            f"{question.model.name} on {partition.chips} chips of {question.system.name}: "
            f"{partition.division}; "
            f"{question.requests:,} requests, {question.load.in_words()}",
            f"calibration {question.assumptions.calibration.name}, overlap "
            f"{question.assumptions.overlap.value}; modelled, not measured",
        ),
        alt.layer(bars, words).properties(width=_WIDTH, height=_BAR * (len(rows) + 1)),
    )


def _rows(found: Explanation) -> list[Row]:
    """Terms in order, short ones as one, then the step."""
    rows: list[Row] = []
    reached, others = 0.0, 0.0

    def add(term: str, engine: str, law: str, start: float, ns: float) -> None:
        ends = sorted((start / _MS, (start + ns) / _MS))
        rows.append(
            {
                "term": term,
                "waits for": engine,
                "law": law,
                "from": ends[0],
                "to": ends[1],
                "end": ends[1],
                "ms": f"{ns / _MS:,.3f}",
            }
        )

    for each in found.terms:
        if abs(each.ns) < LEAST_SHARE * found.step_ns:
            others += each.ns
            continue
        add(f"{each.part}: {each.term}", each.engine, each.law, reached, each.ns)
        reached += each.ns
    if others:
        add("others", "others", "shorter terms", reached, others)
    add("step", _STEP, "sum of the terms", 0.0, found.step_ns)
    return rows
