"""Steps of a plan's growth: machines that the traffic needs, month by month, and their orders."""

from collections.abc import Sequence
from typing import Final

import altair as alt

from reporting.charts import BLUE, GREY, ORANGE, Row, TitledChart, chart_of, titled, whole_axis
from serving.analysis.plan.plan_growth import MachineOrder

_KINDS: Final = {"needed": BLUE, "to be ordered": ORANGE}


def growth_chart(
    growth: str, machines: Sequence[int], orders: Sequence[MachineOrder]
) -> TitledChart:
    """For a plan's page; `growth` in words, `machines` of months 0 (now) to the last one."""
    x = alt.X("month:Q", title="months from now")
    y = alt.Y("machines:Q", axis=whole_axis(max(machines), "machines"))
    color = alt.Color(
        "what:N",
        scale=alt.Scale(domain=list(_KINDS), range=list(_KINDS.values())),
        legend=alt.Legend(orient="top", title=None, symbolType="stroke", symbolStrokeWidth=3),
    )
    steps = chart_of(_steps(machines, orders)).mark_line(interpolate="step-after", strokeWidth=2)
    now = chart_of([{"month": 0}]).mark_rule(color=GREY, strokeDash=[4, 3])
    return titled(
        f"machines, if {growth}",
        "Each step is needed where the blue line rises and ordered a lead time earlier; left of "
        "the grey line an order is late. Without a spare machine.",
        now.encode(x=x),
        steps.encode(x=x, y=y, color=color),
    )


def _steps(machines: Sequence[int], orders: Sequence[MachineOrder]) -> list[Row]:
    needed: list[Row] = [{"month": 0.0, "machines": machines[0], "what": "needed"}]
    late = [each.order_month for each in orders if each.is_late]
    begin = min([0.0, *late])
    ordered: list[Row] = [{"month": begin, "machines": machines[0], "what": "to be ordered"}]
    for order in orders:
        needed.append({"month": order.needed_month, "machines": order.last, "what": "needed"})
        ordered.append(
            {"month": order.order_month, "machines": order.last, "what": "to be ordered"}
        )
    needed.append({"month": len(machines) - 1, "machines": machines[-1], "what": "needed"})
    return [*needed, *ordered]
