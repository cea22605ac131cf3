"""Chart of a day: demand, chips, power and latency over the hours."""

from collections.abc import Mapping
from datetime import timedelta
from math import ceil
from typing import Any, Final

import altair as alt
import numpy as np
from numpy.typing import NDArray

from reporting.charts import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    RED,
    Row,
    chart_of,
    colour,
    picture,
    series_rows,
)
from serving.analysis.day.day_result import DayResult
from serving.analysis.day.day_trace import HOUR_S
from serving.analysis.day.virtual_day import VirtualDay

Float64s = NDArray[np.float64]

_WIDTH: Final = 900
_DAYS_BY_HOUR: Final = 2
_POINTS_MAX: Final = 288
_LINE_MAX: Final = 110
_WATTS_PER_KILOWATT: Final = 1e3
_USES: Final = {"serving": BLUE, "on the way": "#fab005", "training": GREEN, "idle": "#ced4da"}


def day_chart(day: VirtualDay) -> alt.VConcatChart:
    """Five panels over one axis of time."""
    load = day.headline
    result, never = load.results[0], load.never
    source = day.settings.question.trace.source
    return picture(
        f"{day.settings.sweep.model.name} on {day.settings.machines} x "
        f"{day.settings.sweep.system.name} under the policy {result.policy}",
        (
            f"{result.slo_attainment:.2%} of the requests within {day.settings.slo}; "
            f"{result.training_tokens / 1e9:,.3g} billion tokens trained in "
            f"{result.training_chip_hours:,.0f} chip-hours; {result.energy_mwh:,.3g} MWh",
            f"highest rate {load.peak_share:.0%} of the capacity; {_short(source)}",
            "modelled, not measured",
        ),
        _demand(result),
        _chips(result),
        _power(result, never),
        _latency(day, result),
        _attainment(result),
    )


def _short(text: str) -> str:
    return text if len(text) <= _LINE_MAX else f"{text[: _LINE_MAX - 1]}…"


def _span(result: DayResult) -> int:
    return -(-len(result.walk.demand.arrivals) // _POINTS_MAX)


def _means(values: Float64s, span: int) -> Float64s:
    """The mean of each `span` values; an incomplete last span is dropped."""
    whole = len(values) // span * span
    means: Float64s = values[:whole].reshape(-1, span).mean(axis=1)
    return means


def _hours(result: DayResult) -> list[float]:
    """The middle of each point, in hours from the midnight before the walk, in the trace's zone."""
    demand, span = result.walk.demand, _span(result)
    step_h = span * demand.interval_s / HOUR_S
    return [demand.first_h + (n + 0.5) * step_h for n in range(len(demand.arrivals) // span)]


def _rows(result: DayResult, series: Mapping[str, Float64s], value: str) -> list[Row]:
    span = _span(result)
    means = {name: _means(values, span) for name, values in series.items()}
    return series_rows(("hour", np.array(_hours(result))), value, means)


def _x(result: DayResult, *, last: bool = False) -> alt.X:
    """Hours from midnight; the lowest panel has the labels for all."""
    demand = result.walk.demand
    first_h = demand.first_h
    end_h = first_h + demand.length_s / HOUR_S
    days = ceil(end_h / 24)
    if days > _DAYS_BY_HOUR:
        names = [(demand.begins + timedelta(days=day)).strftime("%a %d") for day in range(days)]
        values = [24.0 * day for day in range(days) if 24 * day >= first_h]
        words = f"{names}[floor(datum.value / 24)]"
        title = f"days from {demand.begins:%A %Y-%m-%d}"
    else:
        values = [float(hour) for hour in range(0, 24 * days + 1, 3 * days) if hour >= first_h]
        words = "format(datum.value % 24, '02d') + ':00'"
        title = f"{demand.begins:%A %Y-%m-%d}, time of day"
    axis = alt.Axis(
        values=[value for value in values if value <= end_h],
        labelExpr=words,
        labels=last,
        ticks=last,
        title=f"{title}, {demand.begins:%Z}" if last else None,
    )
    return alt.X("hour:Q", axis=axis, scale=alt.Scale(domain=[first_h, end_h], nice=False))


def _shades(names: Mapping[str, str], *, symbol: str = "stroke") -> alt.Color:
    return colour("what", list(names), list(names.values()), symbol=symbol, orient="right")


def _lines(
    result: DayResult, series: dict[str, tuple[Float64s, str]], *, title: str, height: int
) -> Any:
    rows = _rows(result, {name: values for name, (values, _) in series.items()}, "value")
    return (
        chart_of(rows)
        .mark_line(strokeWidth=1.8, interpolate="monotone")
        .encode(
            x=_x(result),
            y=alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=4)),
            color=_shades({name: shade for name, (_, shade) in series.items()}),
        )
        .properties(width=_WIDTH, height=height)
    )


def _demand(result: DayResult) -> Any:
    walk = result.walk
    arrived = walk.demand.arrivals / walk.demand.interval_s
    groups = walk.serving
    can = groups * result.machine.curve.capacity_per_s
    return _lines(
        result,
        {"demand": (arrived, BLUE), "capacity that serves": (can, ORANGE)},
        title="requests/s",
        height=130,
    )


def _chips(result: DayResult) -> Any:
    walk = result.walk
    to_chips = result.machine.group_chips / walk.demand.interval_s
    columns = {
        "serving": walk.column("serving_s"),
        "on the way": sum(
            (walk.column(name) for name in ("leaving_s", "restoring_s", "paused_s")),
            start=np.zeros(len(walk.times)),
        ),
        "training": walk.column("chips_at_work_s") / result.machine.group_chips,
    }
    columns["idle"] = sum(
        (walk.column(name) for name in ("training_s", "idle_s")), start=-columns["training"]
    )
    rows = _rows(result, {name: values * to_chips for name, values in columns.items()}, "chips")
    order = list(_USES)
    return (
        chart_of({**row, "order": order.index(str(row["what"]))} for row in rows)
        .mark_area(interpolate="step", line=False, opacity=0.88)
        .encode(
            x=_x(result),
            y=alt.Y("chips:Q", title="chips", stack="zero", axis=alt.Axis(tickCount=4)),
            color=_shades(_USES, symbol="square"),
            order=alt.Order("order:Q"),
        )
        .properties(width=_WIDTH, height=150)
    )


def _power(result: DayResult, never: DayResult) -> Any:
    series = {result.policy: (result.facility_watts / _WATTS_PER_KILOWATT, RED)}
    if never is not result:
        series["never"] = (never.facility_watts / _WATTS_PER_KILOWATT, INK)
    return _lines(result, series, title="kW at the meter", height=110)


def _latency(day: VirtualDay, result: DayResult) -> Any:
    """p99 latencies at the groups' rates over their limits; TTFT includes the backlog's wait."""
    curve, walk, slo = result.machine.curve, result.walk, day.settings.slo
    groups = np.maximum(walk.serving, 1e-9)
    wait_s = walk.backlog / (groups * curve.saturated_at(groups))
    ttft_s = curve.seconds("ttft_p99_s", walk.group_rates, groups) + wait_s
    tpot_s = curve.seconds("tpot_p99_s", walk.group_rates, groups)
    series = {}
    if slo.ttft_s is not None:
        series[f"TTFT p99 / {slo.ttft_s * 1e3:g} ms"] = (ttft_s / slo.ttft_s, BLUE)
    if slo.tpot_s is not None:
        series[f"TPOT p99 / {slo.tpot_s * 1e3:g} ms"] = (tpot_s / slo.tpot_s, ORANGE)
    lines = _lines(result, series, title="p99 over its limit", height=110)
    limit = chart_of([{"value": 1.0}]).mark_rule(strokeDash=[4, 4], color=INK).encode(y="value:Q")
    return alt.layer(lines, limit).properties(width=_WIDTH, height=110)


def _attainment(result: DayResult) -> Any:
    walk = result.walk
    per_hour = max(1, round(HOUR_S / walk.demand.interval_s))
    kept = result.kept("both_share")
    hours = len(kept) // per_hour
    whole = hours * per_hour
    by_hour = kept[:whole].reshape(hours, per_hour).sum(axis=1)
    came = walk.demand.arrivals[:whole].reshape(hours, per_hour).sum(axis=1)
    share = np.divide(by_hour, came, out=np.ones(hours), where=came > 0)  # [hours]
    rows = [
        {"hour": walk.demand.first_h + hour, "value": value}
        for hour, value in enumerate([*share.tolist(), float(share[-1])])
    ]
    required = result.machine.curve.required_share
    low = min(required - 0.01, float(share.min()))
    y = alt.Y(
        "value:Q",
        title="in time, by hour",
        scale=alt.Scale(domain=[low, 1.0], nice=False, clamp=True),
        axis=alt.Axis(format=".1%", tickCount=3),
    )
    bars = chart_of(rows).mark_line(interpolate="step-after", strokeWidth=1.8, color=GREEN)
    limit = chart_of([{"value": required}]).mark_rule(strokeDash=[4, 4], color=INK)
    return alt.layer(bars.encode(x=_x(result, last=True), y=y), limit.encode(y=y)).properties(
        width=_WIDTH, height=80
    )
