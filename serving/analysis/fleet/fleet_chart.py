"""Picture of a fleet: power against the caps, what chips do, and each building hour by hour."""

from datetime import timedelta
from typing import Any, Final

import altair as alt
import numpy as np
from numpy.typing import NDArray

from reporting.charts import BLUE, GREEN, INK, RED, Row, chart_of, colour, picture, series_rows
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.fleet.fleet_account import FleetAccount
from serving.analysis.fleet.fleet_plan import WATTS_PER_MEGAWATT
from serving.analysis.fleet.virtual_fleet import VirtualFleet

Float64s = NDArray[np.float64]

_WIDTH: Final = 900
_CELL: Final = 9
"""Points of a building's line."""
_USES: Final = {
    "serving": BLUE,
    "training": GREEN,
    "ready or on the way": "#fab005",
    "off": "#ced4da",
    "out of service": RED,
}


def fleet_chart(fleet: VirtualFleet) -> alt.VConcatChart:
    """Two panels of all buildings, and two with a line for each of them, over one axis of time.

    The power of a building without a cap is shown as a share of its own highest.
    """
    everything = fleet.everything
    return picture(
        fleet.question.plan.name,
        (
            f"{everything.chips:,} chips in {len(fleet.buildings)} buildings; "
            f"{everything.attainment:.2%} of the requests within the target, goodput "
            f"{everything.goodput:.1%}, {everything.energy_mwh:,.0f} MWh",
            "modelled, not measured",
        ),
        _power(everything),
        _uses(everything),
        _cells(
            fleet,
            {
                each.name: _by_hour(each, each.meter_watts / _ceiling(each))
                for each in fleet.buildings
            },
            title="power, of the cap",
            scheme="yelloworangered",
        ),
        _cells(
            fleet,
            {
                each.name: _by_hour(each, each.chip_uses()["out of service"] / each.chips)
                for each in fleet.buildings
            },
            title="chips out of service",
            scheme="purples",
            last=True,
        ),
    )


def _ceiling(account: FleetAccount) -> Float64s | float:
    return account.peak_watts if account.cap_watts is None else account.cap_watts


def _by_hour(account: FleetAccount, values: Float64s) -> Float64s:
    """Means, [hours]."""
    means: Float64s = values.reshape(-1, round(HOUR_S / account.interval_s)).mean(axis=1)
    return means


def _hours(account: FleetAccount) -> Float64s:
    """Where each hour begins, from the midnight before the walk, [hours]."""
    first_h = account.rows[0].result.walk.demand.first_h
    return first_h + np.arange(round(account.length_h), dtype=np.float64)


def _x(account: FleetAccount, *, last: bool = False) -> alt.X:
    """Days from midnight; the lowest panel has the labels for all."""
    begins, hours = account.rows[0].result.walk.demand.begins, _hours(account)
    days = range(int(hours[-1] // 24) + 1)
    names = [(begins + timedelta(days=day)).strftime("%a %d") for day in days]
    axis = alt.Axis(
        values=[24.0 * day for day in days],
        labelExpr=f"{names}[floor(datum.value / 24)]",
        labels=last,
        ticks=last,
        title=f"days from {begins:%A %Y-%m-%d}, {begins:%Z}" if last else None,
    )
    scale = alt.Scale(domain=[float(hours[0]), float(hours[-1]) + 1], nice=False)
    return alt.X("hour:Q", axis=axis, scale=scale)


def _power(account: FleetAccount) -> Any:
    series = {"drawn": _by_hour(account, account.meter_watts) / WATTS_PER_MEGAWATT}
    if account.cap_watts is not None:
        series["caps"] = _by_hour(account, account.cap_watts) / WATTS_PER_MEGAWATT
    rows = series_rows(("hour", _hours(account)), "MW", series)
    return (
        chart_of(rows)
        .mark_line(strokeWidth=1.8, interpolate="step-after")
        .encode(
            x=_x(account),
            y=alt.Y("MW:Q", title="MW at the meter", axis=alt.Axis(tickCount=4)),
            color=colour("what", list(series), [RED, INK], orient="right"),
        )
        .properties(width=_WIDTH, height=130)
    )


def _uses(account: FleetAccount) -> Any:
    uses = {name: _by_hour(account, values) for name, values in account.chip_uses().items()}
    order = list(_USES)
    rows = series_rows(("hour", _hours(account)), "chips", uses)
    return (
        chart_of({**row, "order": order.index(str(row["what"]))} for row in rows)
        .mark_area(interpolate="step-after", line=False, opacity=0.88)
        .encode(
            x=_x(account),
            y=alt.Y("chips:Q", title="chips", stack="zero", axis=alt.Axis(tickCount=4)),
            color=colour("what", order, list(_USES.values()), symbol="square", orient="right"),
            order=alt.Order("order:Q"),
        )
        .properties(width=_WIDTH, height=150)
    )


def _cells(
    fleet: VirtualFleet,
    by_building: dict[str, Float64s],
    *,
    title: str,
    scheme: Any,
    last: bool = False,
) -> Any:
    """A line of cells for each building, a cell for each hour."""
    hours = _hours(fleet.everything)
    rows: list[Row] = [
        {"building": name, "hour": hour, "end": hour + 1, "share": float(f"{share:.3g}")}
        for name, shares in by_building.items()
        for hour, share in zip(hours.tolist(), shares.tolist(), strict=True)
    ]
    names = list(by_building)
    return (
        chart_of(rows)
        .mark_rect()
        .encode(
            x=_x(fleet.everything, last=last),
            x2="end:Q",
            y=alt.Y("building:N", sort=names, title=None, axis=alt.Axis(labelFontSize=8)),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(scheme=scheme),
                legend=alt.Legend(title=title, format=".0%", orient="right", titleLimit=200),
            ),
        )
        .properties(width=_WIDTH, height=max(40, _CELL * len(names)))
    )
