"""Chart of the headline curve."""

from collections.abc import Iterator
from math import log10
from typing import Any, Final

import altair as alt
import numpy as np

from emulator.power.efficiency import PowerBasis
from reporting.charts import INK, Row, chart_of, colour, logarithmic, picture
from serving.analysis.pareto.pareto import MachineCurve, Pareto
from serving.analysis.pareto.pareto_claims import Finding
from serving.analysis.pareto.simulated_points import SimulatedCurve
from serving.analysis.steady_state.operating_point import OperatingPoint

Panel = alt.LayerChart | alt.FacetChart

_CELLS_PER_DECADE: Final = 60
"""Of points nearer than this on logarithmic axes, within a few pixels, one is drawn."""
_LINE_SAMPLES: Final = 300
_WIDTH, _HEIGHT, _RATIO_HEIGHT, _CLAIM_HEIGHT = 820, 440, 190, 18
_BELOW: Final = 6.0
"""The lower edge is the lowest envelope value over this."""
_ROUNDING: Final = 1e-9
_BASIS_IN_WORDS: Final = {
    PowerBasis.PROVISIONED: "of the racks' budget",
    PowerBasis.DRAWN: "drawn at the meter",
    PowerBasis.ALL_IN: "all-in",
}
_RANGE_WORDS: Final = "; pale: the model's 80 % range, upwards"
_NAMES: Final = ("system", "partition", "precision", "loses the most to")
_USER: Final = "tokens/s/user"
_PER_MW: Final = "tokens/s/MW"


def pareto_chart(pareto: Pareto, simulated: SimulatedCurve | None = None) -> alt.VConcatChart:
    """Points and envelopes, and simulated points; below, ratios to the first machine, and the
    vendor's claims.
    """
    first = pareto.machines[0].sweep
    shape = first.shape
    panels: list[Any] = [_curves(pareto, simulated)]
    if len(pareto.machines) > 1:
        panels.append(_ratios(pareto))
    if pareto.vendor_findings:
        panels.append(_claims(pareto.vendor_findings))
    return picture(
        f"{first.model.name}: output tokens/s per megawatt against tokens/s per user",
        (
            f"{shape.prompt_tokens:,} prompt and {shape.output_tokens:,} output tokens; "
            f"power {pareto.basis}; overlap {first.assumptions.overlap.value}; "
            f"calibration {first.assumptions.calibration.name}; modelled, not measured",
            "line and large points: the upper envelope; small points: other partitions, batches, "
            "precisions and LNCs" + _RANGE_WORDS * bool(first.assumptions.model_error),
        ),
        *panels,
        spacing=26,
    )


def _x_axis(pareto: Pareto) -> alt.X:
    low = min(float(machine.envelope.x[0]) for machine in pareto.machines) / 2
    high = max(machine.envelope.reach for machine in pareto.machines)
    title = "interactivity: output tokens/s per user"
    return alt.X(f"{_USER}:Q", title=title, **logarithmic(low, high, clamp=False))


def _shades(pareto: Pareto) -> alt.Color:
    names = [machine.name for machine in pareto.machines]
    return colour("system", names, orient="top-right", room=0)


def _curves(pareto: Pareto, simulated: SimulatedCurve | None) -> Panel:
    x, shades = _x_axis(pareto), _shades(pareto)
    heights = [machine.envelope.y for machine in pareto.machines]
    low, high = min(float(y[-1]) for y in heights), max(float(y[0]) for y in heights)
    y = alt.Y(
        f"{_PER_MW}:Q",
        title=f"output tokens/s per MW {_BASIS_IN_WORDS[pareto.basis]}",
        **logarithmic(low / _BELOW, high * 1.5, clamp=False),
    )
    names = ["system", _USER, _PER_MW, "partition", "precision", "batch", "users"]
    tooltip = [alt.Tooltip(f"{name}:{_type_of(name)}") for name in names]
    cloud = chart_of(_cloud(pareto)).mark_circle(size=7, opacity=0.22, clip=True)
    line = chart_of(_line(pareto)).mark_line(strokeWidth=2.5)
    best = chart_of(_best(pareto)).mark_circle(size=42, opacity=1)
    layers = [
        *_ranges(pareto, x=x, y=y, color=shades),
        cloud.encode(x=x, y=y, color=shades, tooltip=tooltip),
        line.encode(x=x, y=y, color=shades),
        best.encode(x=x, y=y, color=shades, tooltip=tooltip),
    ]
    if simulated is not None:
        layers += _marks(pareto, simulated, x=x, y=y, color=shades)
    return alt.layer(*_bands(pareto, x), *layers).properties(width=_WIDTH, height=_HEIGHT)


def _marks(pareto: Pareto, simulated: SimulatedCurve, **encoded: Any) -> list[alt.Chart]:
    """Simulated points, each with a line from its partition's steady state within the target."""
    what = f"simulated under {simulated.target.slo}; dashed: from its own steady state"
    rows = [*_simulated_rows(pareto, simulated, what)]
    ends = [
        {**row, "step": step, _USER: row[f"{step} user"], _PER_MW: row[f"{step} MW"]}
        for row in rows
        for step in ("steady", "simulated")
    ]
    line = chart_of(ends).mark_line(strokeWidth=1.2, strokeDash=[4, 3], opacity=0.7, clip=True)
    mark = chart_of(rows).mark_point(size=95, filled=True, stroke=INK, opacity=1, clip=True)
    names = ["system", _USER, _PER_MW, "partition", "precision", "requests/s", "loses the most to"]
    tooltip = [alt.Tooltip(f"{name}:{_type_of(name)}") for name in names]
    legend = alt.Legend(orient="bottom-left", title=None, labelLimit=_WIDTH, symbolFillColor=INK)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=[what], range=["diamond"]), legend=legend)
    return [
        line.encode(detail="place:N", **encoded),
        mark.encode(shape=shape, tooltip=tooltip, **encoded),
    ]


def _simulated_rows(
    pareto: Pareto, simulated: SimulatedCurve, what: str
) -> Iterator[dict[str, Any]]:
    for machine in pareto.machines:
        for place, each in enumerate(simulated.of(machine, pareto.basis)):
            per_user, option = each.tokens_per_s_per_user, each.setting.option
            if per_user is not None:
                per_mw = _short(each.tokens_per_s_per_mw(pareto.basis))
                yield {
                    "what": what,
                    "place": f"{machine.name} {place}",
                    "system": machine.name,
                    _USER: _short(per_user),
                    _PER_MW: per_mw,
                    "simulated user": _short(per_user),
                    "simulated MW": per_mw,
                    "steady user": _short(option.point.tokens_per_s_per_user),
                    "steady MW": _short(each.steady_tokens_per_s_per_mw(pareto.basis)),
                    "partition": each.setting.words,
                    "precision": option.point.precision,
                    "requests/s": _short(each.rate.requests_per_s),
                    "loses the most to": each.largest_loss or "",
                }


def _ranges(pareto: Pareto, **encoded: Any) -> list[alt.Chart]:
    """80 % ranges of the envelopes; none for a roofline."""
    rate = pareto.machines[0].sweep.assumptions.model_error.get("tokens_per_s")
    if rate is None:
        return []
    rows = []
    for row in _line(pareto):
        least, most = map(_short, rate.around(row[_PER_MW]))
        rows.append({**row, _PER_MW: least, "most": most})
    area = chart_of(rows).mark_area(opacity=0.15, clip=True)
    return [area.encode(y2=alt.Y2("most:Q"), **encoded)]


def _type_of(name: str) -> str:
    return "N" if name in _NAMES else "Q"


def _bands(pareto: Pareto, x: alt.X) -> list[alt.Chart]:
    """Ranges in which the model reaches the vendor's tokens per megawatt."""
    if not pareto.vendor_findings:
        return []
    headline = pareto.vendor_findings[0]
    rows = [{_USER: span.low, "to": span.high} for span in headline.reached]
    return [chart_of(rows).mark_rect(opacity=0.12, color=INK).encode(x=x, x2="to:Q")]


def _ratios(pareto: Pareto) -> Panel:
    base = pareto.machines[0].name
    x = _x_axis(pareto)
    rows: list[dict[str, Any]] = [
        {_USER: _short(float(x)), "ratio": _short(float(ratio)), "system": machine.name}
        for machine, curve in pareto.ratios()
        for x, ratio in zip(curve.x, curve.ratio, strict=True)
    ]
    marks: list[dict[str, Any]] = [{"ratio": 1.0, "what": f"{base} = 1"}]
    peaks: list[dict[str, Any]] = []
    for each in pareto.vendor_findings[:1]:
        claimed = each.claim.ratio
        where = "reached in the shaded range" if each.reached else "not reached"
        marks.append({"ratio": claimed, "what": f"the vendor's claim, {claimed:g}x: {where}"})
        words = f"{each.largest:.1f}x at {each.largest_at:,.0f}"
        peaks.append({_USER: each.largest_at, "ratio": each.largest, "what": words})
    ratios = [row["ratio"] for row in rows] + [mark["ratio"] for mark in marks]
    title = ["times the tokens/s per MW", f"of {base}"]
    y = alt.Y("ratio:Q", title=title, **logarithmic(min(ratios), max(ratios) * 1.3))
    line = chart_of(rows).mark_line(strokeWidth=2.5)
    rule = chart_of(marks).mark_rule(strokeDash=[4, 4], color=INK)
    words = chart_of(marks).mark_text(align="left", dx=4, dy=-7, x=0, color=INK, fontSize=11)
    peak = chart_of(peaks).mark_text(dy=-10, fontSize=12, fontWeight="bold")
    return alt.layer(
        *_bands(pareto, x),
        rule.encode(y=y),
        line.encode(x=x, y=y, color=_shades(pareto).legend(None)),
        words.encode(y=y, text="what:N"),
        peak.encode(x=x, y=y, text="what:N"),
    ).properties(width=_WIDTH, height=_RATIO_HEIGHT)


def _claims(found: tuple[Finding, ...]) -> Panel:
    rows: list[Row] = [
        {
            "line": place,
            "claim": f"{each.claim.measure.value}: {each.claim.ratio:g}x",
            "answer": each.in_words(),
        }
        for place, each in enumerate(found)
    ]
    y = alt.Y("line:O", axis=None)
    text = chart_of(rows).mark_text(align="left", fontSize=12, color=INK)
    return (
        alt.layer(
            text.encode(y=y, x=alt.value(0), text="claim:N"),
            text.encode(y=y, x=alt.value(_WIDTH * 0.42), text="answer:N"),
        )
        .properties(width=_WIDTH, height=_CLAIM_HEIGHT * len(rows))
        .properties(
            title=alt.TitleParams(
                text="What the vendor claims, and what the model gives", anchor="start", fontSize=13
            )
        )
    )


def _cloud(pareto: Pareto) -> Iterator[dict[str, Any]]:
    """One point of each cell of a fine grid; the envelope is drawn whole."""
    for machine in pareto.machines:
        seen: set[tuple[int, int]] = set()
        for point in machine.points:
            row = _row(machine, point, pareto)
            cell = (_cell(row["tokens/s/user"]), _cell(row["tokens/s/MW"]))
            if cell not in seen:
                seen.add(cell)
                yield row


def _line(pareto: Pareto) -> Iterator[dict[str, Any]]:
    for machine in pareto.machines:
        envelope = machine.envelope
        between = np.geomspace(envelope.x[0], envelope.reach, _LINE_SAMPLES)
        x = np.unique(np.concatenate([envelope.x, between[between < envelope.reach]]))
        for across, up in zip(x.tolist(), envelope.at(x).tolist(), strict=True):
            yield {
                "system": machine.name,
                "tokens/s/user": _short(across),
                "tokens/s/MW": _short(up),
            }


def _best(pareto: Pareto) -> Iterator[dict[str, Any]]:
    """Points of the envelope, except those below its line, which runs between other batches."""
    for machine in pareto.machines:
        envelope = machine.envelope
        on_line = envelope.y >= envelope.at(envelope.x) * (1 - _ROUNDING)
        for point, is_on_line in zip(machine.on_envelope(), on_line.tolist(), strict=True):
            if is_on_line:
                yield _row(machine, point, pareto)


def _cell(value: float) -> int:
    return round(log10(value) * _CELLS_PER_DECADE)


def _row(machine: MachineCurve, point: OperatingPoint, pareto: Pareto) -> dict[str, Any]:
    partition = point.candidate.partition
    return {
        "system": machine.name,
        "tokens/s/user": _short(point.tokens_per_s_per_user),
        "tokens/s/MW": _short(point.output_tokens_per_s_per_mw(pareto.basis)),
        "partition": f"{point.candidate.replicas} x {partition.chips} chips, {partition.division}",
        "precision": point.precision,
        "batch": point.batch,
        "users": _short(point.users),
    }


def _short(value: float) -> float:
    """Five digits: more than a chart shows."""
    return float(f"{value:.5g}")
