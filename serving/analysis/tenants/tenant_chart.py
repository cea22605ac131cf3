"""Chart of a fleet's day: who has which number of groups over the hours, and the power drawn."""

from typing import Any, Final

import altair as alt
import numpy as np

from emulator.arrays import Float64s
from reporting.charts import COLOURS, RED, Row, chart_of, colour, picture, series_rows
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.tenants.tenant_accounts import NightAccount

_WIDTH: Final = 900
_POINTS_MAX: Final = 288
_ON_THE_WAY: Final = "on the way"
_IDLE: Final = "idle"
_GREYS: Final = {_ON_THE_WAY: "#fab005", _IDLE: "#ced4da"}
_WATTS_PER_KILOWATT: Final = 1e3


def tenant_chart(account: NightAccount) -> alt.VConcatChart:
    """Two panels over one axis of time."""
    day = account.day
    kept = ", ".join(f"{of.name} {of.result.slo_attainment:.2%}" for of in account.models)
    return picture(
        f"{day.groups} groups of {day.group_chips} chips on a {day.settings.system.name}",
        (f"requests within their target: {kept}", "modelled, not measured"),
        _groups(account),
        _power(account),
    )


def group_users(account: NightAccount) -> dict[str, Float64s]:
    """Mean groups in each interval by who has them, [intervals]; their sum is all groups."""
    interval_s = account.day.settings.terms.interval_s
    models = {
        f"{of.name} serves": of.result.walk.column("serving_s") / interval_s
        for of in account.models
    }
    tenants = {of.pool.tenant.name: of.column("training_s") / interval_s for of in account.tenants}
    idle = sum(
        (of.column("idle_s") / interval_s for of in account.tenants),
        start=np.array([of.idle_s for of in account.idle]) / interval_s,
    )
    had = sum((*models.values(), *tenants.values()), start=idle)
    return models | tenants | {_ON_THE_WAY: account.day.groups - had, _IDLE: idle}


def _rows(account: NightAccount, series: dict[str, Float64s]) -> list[Row]:
    """The means of so many intervals that a point is seen."""
    intervals = len(account.idle)
    span = -(-intervals // _POINTS_MAX)
    whole = intervals // span * span
    means = {name: values[:whole].reshape(-1, span).mean(axis=1) for name, values in series.items()}
    interval_h = account.day.settings.terms.interval_s / HOUR_S
    hours = (np.arange(whole // span, dtype=np.float64) + 0.5) * span * interval_h
    return series_rows(("hour", hours), "value", means)


def _x(account: NightAccount) -> alt.X:
    begins = account.day.models[0].walk.demand.begins
    end_h = account.day.settings.length_s / HOUR_S
    return alt.X(
        "hour:Q",
        title=f"hours from {begins:%A %Y-%m-%d %H:%M %Z}",
        scale=alt.Scale(domain=[0, end_h], nice=False),
    )


def _groups(account: NightAccount) -> Any:
    users = group_users(account)
    order = list(users)
    shades = [_GREYS.get(name, COLOURS[n % len(COLOURS)]) for n, name in enumerate(order)]
    rows = _rows(account, users)
    return (
        chart_of({**row, "order": order.index(str(row["what"]))} for row in rows)
        .mark_area(interpolate="step", line=False, opacity=0.88)
        .encode(
            x=_x(account),
            y=alt.Y("value:Q", title="groups", stack="zero", axis=alt.Axis(tickCount=4)),
            color=colour("what", order, shades, symbol="square", orient="right"),
            order=alt.Order("order:Q"),
        )
        .properties(width=_WIDTH, height=260)
    )


def _power(account: NightAccount) -> Any:
    kilowatts = account.facility_watts / _WATTS_PER_KILOWATT
    return (
        chart_of(_rows(account, {"power": kilowatts}))
        .mark_line(strokeWidth=1.8, interpolate="monotone", color=RED)
        .encode(
            x=_x(account),
            y=alt.Y("value:Q", title="kW at the meter", axis=alt.Axis(tickCount=4)),
        )
        .properties(width=_WIDTH, height=110)
    )
