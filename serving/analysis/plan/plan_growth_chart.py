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
    needed: list[Row] = [{"month": 0.0, "machines": plan.machines, "what": "needed"}]
    late = [each.order_month for each in found.orders if each.is_late]
    begin = min([0.0, *late])
    ordered: list[Row] = [{"month": begin, "machines": plan.machines, "what": "to be ordered"}]
    for order in found.orders:
        needed.append({"month": order.needed_month, "machines": order.last, "what": "needed"})
        ordered.append(
            {"month": order.order_month, "machines": order.last, "what": "to be ordered"}
        )
    last = found.months[-1]
    needed.append({"month": last.month, "machines": last.machines, "what": "needed"})
    return [*needed, *ordered]
