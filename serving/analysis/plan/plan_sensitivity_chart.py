"""Tornado of a plan's sensitivity: what chips, watts and dollars change by, figure by figure."""

from collections.abc import Iterator
from typing import Any, Final

import altair as alt

from reporting.charts import BLUE, INK, ORANGE, Chart, Row, TitledChart, chart_of, picture
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_sensitivity import FigureSwing, MovedFigure, PlanSensitivity
from serving.analysis.plan.plan_steady import SteadyFleet, Unable

MOST: Final = 24
"""Figures shown."""
_ROW: Final = 20
_WIDTH: Final = 270
_SIDES: Final = {"smaller figure": BLUE, "larger figure": ORANGE}
_TITLE: Final = "if one figure were another"
_ABOUT: Final = (
    "the plan's own setting in the steady state, without queues; halved and doubled, shares -10 % "
    "and +10 %"
)
_MEASURES: Final = {
    "chips": "chips in service",
    "watts": "MW at the meter",
    "dollars_per_million": "$ per million tokens",
}


def sensitivity_chart(found: PlanSensitivity, plan: Plan) -> alt.VConcatChart:
    """A panel for each measure, the figures in the same rows; without effect it is empty."""
    question = plan.question
    return picture(
        f"{question.sweep.model.name} on {question.sweep.system.name}, {question.slo}: {_TITLE}",
        (_ABOUT, f"{_left_out(found)}; modelled, not measured"),
        _panels(found),
    )


def sensitivity_page_chart(found: PlanSensitivity) -> TitledChart:
    """The same for a page that has the plan's title already."""
    about = f"{_ABOUT}; {_left_out(found)}"
    return TitledChart(title=_TITLE.capitalize(), about=about, chart=_panels(found))


def _left_out(found: PlanSensitivity) -> str:
    smaller = max(0, len(found.swings) - MOST)
    return f"{found.without_effect + smaller} figures with less effect are left out"


def _panels(found: PlanSensitivity) -> alt.HConcatChart:
    base, shown = found.base, found.swings[:MOST]
    measures = [name for name in _MEASURES if base and getattr(base, name)]
    return alt.hconcat(
        *(
            _panel(base, shown, name, first=not place)
            for place, name in enumerate(measures)
            if base is not None
        ),
        spacing=18,
    )


def _panel(base: SteadyFleet, shown: tuple[FigureSwing, ...], measure: str, *, first: bool) -> Any:
    names = [swing.name for swing in shown]
    axis = alt.Axis(labels=first, ticks=False, domain=False, labelLimit=240)
    y = alt.Y("figure:N", title=None, sort=names, axis=axis)
    legend = alt.Legend(orient="top", title=None, symbolType="square") if first else None
    bars = (
        chart_of(_rows(base, shown, measure))
        .mark_bar(height=_ROW * 0.6, opacity=0.9)
        .encode(
            y=y,
            x=alt.X(
                "change:Q",
                title=_MEASURES[measure],
                stack=None,
                axis=alt.Axis(format="+.0%", tickCount=5),
            ),
            color=alt.Color(
                "side:N",
                scale=alt.Scale(domain=list(_SIDES), range=list(_SIDES.values())),
                legend=legend,
            ),
            tooltip=["figure:N", "to:N", alt.Tooltip("change:Q", format="+.1%")],
        )
    )
    middle = chart_of([{"change": 0.0}]).mark_rule(color=INK).encode(x="change:Q")
    layers: list[Chart] = [bars, middle]
    unable = [*_unable_rows(shown)] if first else []
    if unable:
        words = chart_of(unable).mark_text(align="left", dx=4, color=INK, fontSize=10)
        layers.append(words.encode(y=y, x="change:Q", text="words:N"))
    return alt.layer(*layers).properties(width=_WIDTH, height=_ROW * max(1, len(shown)))


def _sides(swing: FigureSwing) -> Iterator[tuple[str, MovedFigure]]:
    yield from zip(_SIDES, (swing.low, swing.high), strict=True)


def _rows(base: SteadyFleet, shown: tuple[FigureSwing, ...], measure: str) -> Iterator[Row]:
    for swing in shown:
        for side, moved in _sides(swing):
            if isinstance(moved.fleet, SteadyFleet):
                change = getattr(moved.fleet, measure) / getattr(base, measure) - 1
                yield {"figure": swing.name, "side": side, "to": moved.text, "change": change}


def _unable_rows(shown: tuple[FigureSwing, ...]) -> Iterator[Row]:
    for swing in shown:
        said = [
            f"{moved.text}: {moved.fleet.value}"
            for _, moved in _sides(swing)
            if isinstance(moved.fleet, Unable)
        ]
        if said:
            yield {"figure": swing.name, "change": 0.0, "words": ", ".join(said)}
