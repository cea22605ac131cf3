"""Steps of a plan's growth: machines that the traffic needs, month by month, and their orders."""

from typing import Final

import altair as alt

from reporting.charts import BLUE, GREY, ORANGE, Row, TitledChart, chart_of, titled
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_growth import PlanGrowth

_KINDS: Final = {"needed": BLUE, "to be ordered": ORANGE}


def growth_chart(plan: Plan, found: PlanGrowth) -> TitledChart:
    """For the plan's page."""
    x = alt.X("month:Q", title="months from now")
    y = alt.Y("machines:Q", title="machines", axis=alt.Axis(tickMinStep=1, format=",d"))
    color = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(_KINDS), range=list(_KINDS.values())),
        legend=alt.Legend(orient="top", title=None, symbolType="stroke", symbolStrokeWidth=3),
    )
    steps = chart_of(_steps(plan, found)).mark_line(interpolate="step-after", strokeWidth=2)
    now = chart_of([{"month": 0}]).mark_rule(color=GREY, strokeDash=[4, 3])
    return titled(
        f"machines, if the traffic grows by {100 * found.growth.monthly:.3g} % a month",
        "Each step is needed where the blue line rises and ordered a lead time earlier; left of "
        "the grey line an order is late. Without a spare machine.",
        now.encode(x=x),
        steps.encode(x=x, y=y, color=color),
    )


def _steps(plan: Plan, found: PlanGrowth) -> list[Row]:
    rows: list[Row] = []
    for what in _KINDS:
        late = [each.order_month for each in found.orders if what != "needed"]
        rows.append({"month": min([0.0, *late]), "machines": plan.machines, "what": what})
        for order in found.orders:
            month = order.needed_month if what == "needed" else order.order_month
            rows.append({"month": month, "machines": order.last, "what": what})
        machines = found.months[-1].machines
        rows.append({"month": found.growth.months, "machines": machines, "what": what})
    return rows
