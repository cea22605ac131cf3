"""The headline curve as a picture: a PNG, or an HTML file that needs nothing but itself."""

from collections.abc import Iterator
from math import log10
from pathlib import Path
from typing import Any, Final

import altair as alt
import numpy as np

from emulator.model import ConfigError
from serving.planning.operating_point import OperatingPoint
from serving.planning.pareto import MachineCurve, Pareto

Panel = alt.LayerChart | alt.FacetChart

_CELLS_PER_DECADE: Final = 60
"""Points nearer than this, on logarithmic axes, would lie on the same few pixels; one is drawn."""
_LOG: Final = alt.Scale(type="log", nice=False)
_LINE_SAMPLES: Final = 300
_WIDTH, _HEIGHT, _RATIO_HEIGHT = 760, 420, 160


def save_chart(pareto: Pareto, path: Path) -> None:
    """Writes the picture in the format of the path's suffix, .png or .html.

    Raises ConfigError for another suffix, or a path that cannot be written.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "html"):
        raise ConfigError(field="picture", value=path, expected="a path that ends in .png or .html")
    chart = pareto_chart(pareto)
    try:
        if kind == "png":
            chart.save(str(path), format="png", scale_factor=2)
        else:
            chart.save(str(path), format="html", inline=True)
    except OSError as error:
        raise ConfigError(
            field="picture", value=path, expected=f"a path to write to ({error.strerror})"
        ) from error


def pareto_chart(pareto: Pareto) -> alt.VConcatChart:
    """Points and envelopes above; below, each machine's ratio to the first, where there are two."""
    first = pareto.machines[0].sweep
    shape = first.shape
    panels: list[Any] = [_curves(pareto)]
    if len(pareto.machines) > 1:
        panels.append(_ratios(pareto))
    title = alt.TitleParams(
        text=f"{first.model.name}: output tokens/s/MW against tokens/s/user",
        subtitle=[
            f"{shape.prompt_tokens:,} prompt and {shape.output_tokens:,} output tokens; "
            f"power {pareto.basis}; overlap {first.assumptions.overlap_name}; "
            f"calibration {first.assumptions.calibration_name}",
            "modelled, not measured",
        ],
        anchor="start",
    )
    return alt.vconcat(*panels).properties(title=title)


def _curves(pareto: Pareto) -> Panel:
    x = alt.X("tokens/s/user:Q", scale=_LOG, title="output tokens/s per user")
    y = alt.Y("tokens/s/MW:Q", scale=_LOG, title="output tokens/s per MW")
    colour = alt.Color("system:N", sort=None, legend=alt.Legend(orient="top", title=None))
    tooltip = ["system", "tokens/s/user", "tokens/s/MW", "partition", "precision", "batch", "users"]
    cloud = alt.Chart(alt.InlineData(values=list(_cloud(pareto)))).mark_circle(size=9, opacity=0.25)
    line = alt.Chart(alt.InlineData(values=list(_line(pareto)))).mark_line(strokeWidth=2)
    best = alt.Chart(alt.InlineData(values=list(_best(pareto)))).mark_circle(size=45, opacity=1)
    typed = [alt.Tooltip(f"{name}:{_type_of(name)}") for name in tooltip]
    return alt.layer(
        cloud.encode(x=x, y=y, color=colour, tooltip=typed),
        line.encode(x=x, y=y, color=colour),
        best.encode(x=x, y=y, color=colour, tooltip=typed),
    ).properties(width=_WIDTH, height=_HEIGHT)


def _type_of(name: str) -> str:
    return "N" if name in ("system", "partition", "precision") else "Q"


def _ratios(pareto: Pareto) -> Panel:
    base = pareto.machines[0].name
    rows = [
        {"tokens/s/user": _short(float(x)), "ratio": _short(float(ratio)), "system": machine.name}
        for machine, curve in pareto.ratios()
        for x, ratio in zip(curve.x, curve.ratio, strict=True)
    ]
    marks = [{"ratio": 1.0, "what": f"{base} = 1"}]
    marks += [
        {"ratio": each.claim.ratio, "what": f"the vendor's claim, {each.claim.ratio:g}x"}
        for each in pareto.vendor_findings[:1]
    ]
    line = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2)
    rule = alt.Chart(alt.InlineData(values=marks)).mark_rule(strokeDash=[4, 4])
    words = alt.Chart(alt.InlineData(values=marks)).mark_text(align="left", dx=4, dy=-6, x=0)
    y = alt.Y("ratio:Q", title=f"tokens/s/MW, {base} = 1")
    return alt.layer(
        line.encode(
            x=alt.X(
                "tokens/s/user:Q",
                scale=_LOG,
                title="tokens/s per user",
            ),
            y=y,
            color=alt.Color("system:N", sort=None),
        ),
        rule.encode(y=y),
        words.encode(y=y, text="what:N"),
    ).properties(width=_WIDTH, height=_RATIO_HEIGHT)


def _cloud(pareto: Pareto) -> Iterator[dict[str, Any]]:
    """One point of each cell of a fine grid; the envelope is drawn whole beside them."""
    for machine in pareto.machines:
        seen: set[tuple[int, int]] = set()
        for point in machine.points:
            row = _row(machine, point, pareto)
            cell = (_cell(row["tokens/s/user"]), _cell(row["tokens/s/MW"]))
            if cell not in seen:
                seen.add(cell)
                yield row


def _line(pareto: Pareto) -> Iterator[dict[str, Any]]:
    """The envelopes, sampled from their first point to their last."""
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
    for machine in pareto.machines:
        for point in machine.on_envelope():
            yield _row(machine, point, pareto)


def _cell(value: float) -> int:
    return round(log10(value) * _CELLS_PER_DECADE)


def _row(machine: MachineCurve, point: OperatingPoint, pareto: Pareto) -> dict[str, Any]:
    partition = point.candidate.partition
    return {
        "system": machine.name,
        "tokens/s/user": _short(point.tokens_per_s_per_user),
        "tokens/s/MW": _short(point.output_tokens_per_s_per_mw(pareto.basis)),
        "partition": f"{point.candidate.replicas} x {partition.chips} chips, tp {partition.tp}, "
        f"ep {partition.ep}, lnc {partition.lnc}",
        "precision": point.precision,
        "batch": point.batch,
        "users": _short(point.users),
    }


def _short(value: float) -> float:
    """Five digits: more than a picture shows."""
    return float(f"{value:.5g}")
