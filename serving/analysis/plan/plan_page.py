"""A plan as a page to send to others: its report with pictures, in one file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import altair as alt

from reporting.charts import (
    BLUE,
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
    whole_axis,
)
from reporting.document import Document, FigureRow
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_margins import Margins
from serving.analysis.plan.plan_report import plan_data
from serving.analysis.plan.size_check import Check

_BAR_HEIGHT = 34
_LABEL_WIDTH = 260
_KINDS = {"keeps the target": GREEN, "does not surely": ORANGE, "misses it": RED}
_RATIO_MAX = 10.0
"""Times a limit: what is later stands at the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """`report` is the plan's, for a reader; `further` are charts of other sections."""

    plan: Plan
    report: Document
    command: str
    further: tuple[TitledChart, ...] = ()

    def document(self) -> Document:
        """For people, with the command that makes it again."""
        return replace(self.report, command=self.command)

    def fields(self) -> object:
        """For programs."""
        return plan_data(self.plan)

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: the answer's main figures."""
        fleet, bill = self.plan.fleet, self.plan.bill
        return (
            FigureRow(traffic_class="", figure="chips_in_service", value=fleet.chips_in_service),
            FigureRow(traffic_class="", figure="ultraservers", value=self.plan.machines),
            FigureRow(traffic_class="", figure="peak_drawn", unit="W", value=bill.peak_drawn_watts),
        )

    def charts(self) -> tuple[TitledChart, ...]:
        """Sizes, rates and hours."""
        return tuple(self._charts())

    def _charts(self) -> Iterator[TitledChart]:
        yield _sizes(self.plan)
        if self.plan.margins is not None:
            yield _rates(self.plan, self.plan.margins)
        yield from self.further
        yield _hours(self.plan)


def _sizes(plan: Plan) -> TitledChart:
    rows: list[Row] = []
    for check in plan.choice.tried:
        ratio = _worst_ratio(check)
        if ratio is not None:
            rows.append({"chips": check.chips, "ratio": ratio, "it": _verdict(check)})
    axis = alt.Axis(format=".0%", title="of the limit that it comes closest to, or misses most")
    most = max((each.chips for each in plan.choice.tried), default=1)
    points = (
        chart_of(rows)
        .mark_point(filled=True, size=70, opacity=0.7)
        .encode(
            x=alt.X(
                "chips:Q", axis=whole_axis(most, "chips in service"), scale=alt.Scale(zero=True)
            ),
            y=alt.Y("ratio:Q", axis=axis, scale=alt.Scale(type="log", nice=False)),
            color=alt.Color(
                "it:N",
                scale=alt.Scale(domain=list(_KINDS), range=list(_KINDS.values())),
                legend=alt.Legend(orient="top", title=None),
            ),
        )
    )
    limit = chart_of([{"ratio": 1.0}]).mark_rule(color=INK, strokeDash=[6, 3]).encode(y="ratio:Q")
    return titled(
        "what was simulated",
        "Each setting (partition, policy, replicas) whose times are known; below the line it is "
        f"within the target, above {_RATIO_MAX:g} limits it stands at the edge.",
        limit,
        points,
    )


def _worst_ratio(check: Check) -> float | None:
    ratios = []
    for term in check.terms:
        if term.reached_s is None:
            return None
        ratios.append(term.reached_s / term.limit_s)
    return min(_RATIO_MAX, max(ratios))


def _verdict(check: Check) -> str:
    sure, unsure, missed = _KINDS
    if check.surely_meets:
        return sure
    return unsure if check.meets else missed


def _rates(plan: Plan, margins: Margins) -> TitledChart:
    rows: list[Row] = [
        {"traffic": each.traffic, "rate": each.requests_per_s} for each in margins.rates
    ]
    y = alt.Y("traffic:N", sort=None, title=None, axis=alt.Axis(labelLimit=_LABEL_WIDTH))
    x = alt.X("rate:Q", title="requests per second", scale=alt.Scale(zero=True))
    demand = [{"rate": plan.question.demand.peak_rate_per_s}]
    return titled(
        "from the steady state to the traffic asked for",
        "The highest rate at which the plan's setting keeps the target; the line is the demand.",
        chart_of(rows).mark_bar(color=BLUE).encode(x=x, y=y),
        chart_of(rows)
        .mark_text(align="left", dx=4, color=INK)
        .encode(x=x, y=y, text=alt.Text("rate:Q", format=",.4~g")),
        chart_of(demand).mark_rule(color=RED, strokeWidth=2).encode(x="rate:Q"),
        width=WIDTH - _LABEL_WIDTH,
        height=_BAR_HEIGHT * len(rows),
    )


def _hours(plan: Plan) -> TitledChart:
    rows: list[Row] = [
        {"hour": number, "chips": count, "what": what}
        for number, hour in enumerate(plan.night.hours)
        for what, count in (
            ("serve", hour.replicas * plan.fleet.replica_chips),
            ("are free", plan.fleet.chips - hour.replicas * plan.fleet.replica_chips),
        )
    ]
    bars = (
        chart_of(rows)
        .mark_bar()
        .encode(
            x=alt.X("hour:O", title="hour of the day"),
            y=alt.Y("chips:Q", title="chips"),
            color=alt.Color(
                "what:N",
                scale=alt.Scale(domain=["serve", "are free"], range=[BLUE, GREY]),
                legend=alt.Legend(orient="top", title=None),
            ),
        )
    )
    return titled("the day's chips", f"Of those bought; the day: {plan.night.day.source}", bars)
