"""The report of `ultraserve power` as text: watts by state, tokens and dollars, assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from emulator.power.system_power import PART_LABELS
from reporting.document import Column, table_of
from reporting.numbers import NOTHING, four_digits
from reporting.plain_text import table_lines

if TYPE_CHECKING:
    from emulator.power.efficiency import PowerEfficiency
    from serving.commands.power import PowerBreakdown, SourcedFigure

_PREFIXES: Final = {
    "chip_watts": ("energy_", "idle_watts", "budget_watts"),
    "cpu_watts": ("cpu_",),
    "tray_watts": ("tray_",),
    "switch_watts": ("switch_",),
    "fan_watts": ("fan_",),
    "pump_watts": ("pump_",),
    "conversion_watts": ("conversion_",),
    "overhead_watts": ("provisioned_",),
    "cooling_watts": ("pue",),
}
"""The prefixes of each part's figures' names."""


def report_lines(report: PowerBreakdown, *, sources: bool = False) -> Iterator[str]:
    """The report as text: budget, a column for each state, tokens and dollars, sources."""
    cooled = f", cooled by {report.cooling}" if report.cooling else ""
    yield (
        f"{report.system}, {report.chips} chips{cooled}, {report.season}: PUE {report.pue:.4g}, "
        f"provisioned {report.provisioned_watts:,.0f} W before cooling"
    )
    yield f"provisioned: {_source(report, 'provisioned_watts')}"
    if report.chip_cap_watts < report.chip_budget_watts:
        digits = 0 if report.chip_budget_watts - report.chip_cap_watts >= 1 else 1
        yield (
            f"a rack's budget holds {report.chip_cap_watts:,.{digits}f} W a chip, not the "
            f"{report.chip_budget_watts:,.{digits}f} W that a chip may draw"
        )
    yield ""
    yield from _state_lines(report)
    yield from _token_lines(report)
    yield ""
    yield from _assumption_lines(report)
    if sources:
        yield ""
        yield from table_lines(table_of(_FIGURES, report.figures))


def _state_lines(report: PowerBreakdown) -> Iterator[str]:
    """A column for each state: its watts by part, and the throttling of its chips."""
    rows: list[tuple[object, ...]] = []
    for index, (name, _) in enumerate(report.states[0].facility.parts()):
        drawn = [state.facility.parts()[index][1] for state in report.states]
        if any(drawn):
            season = (report.season.replace("-", "_"),) if name == "cooling_watts" else ()
            label = PART_LABELS[name]
            label += "*" if _assumed(report, (*_PREFIXES[name], *season)) else ""
            rows.append((label, *drawn))
    rows += [
        ("total", *report.total_watts),
        (
            "racks' input, of provisioned",
            *(f"{watts / report.provisioned_watts:.1%}" for watts in report.it_watts),
        ),
        ("each chip", *(state.watts_per_chip for state in report.states)),
        ("each chip, not held back", *(each.wanted_watts_per_chip for each in report.states)),
        ("times as long", *(f"{state.slow_factor:.2f}" for state in report.states)),
    ]
    columns: list[Column[tuple[object, ...]]] = [
        Column("watts", align="left"),
        *(Column(state.name, form=",.0f") for state in report.states),
    ]
    yield from table_lines(table_of(columns, rows))


def _assumption_lines(report: PowerBreakdown) -> Iterator[str]:
    """The number of assumed figures, and the busy shares of the states."""
    if report.assumptions:
        yield f"{report.system} with {', '.join(report.assumptions)}"
    assumed = sum(figure.assumed for figure in report.figures)
    yield (
        f"* modelled: {assumed} of {len(report.figures)} figures are assumed, all or in part; "
        "--sources prints them"
    )
    named = [state for state in report.states if state.name != "given" and state.busy]
    for state in named:
        busy = ", ".join(f"{engine} {share:g}" for engine, share in state.busy.items())
        yield f"{state.name}: busy shares are assumed, {busy}"


def _assumed(report: PowerBreakdown, prefixes: tuple[str, ...]) -> bool:
    return any(figure.assumed for figure in report.figures if figure.name.startswith(prefixes))


def _source(report: PowerBreakdown, name: str) -> str:
    (figure,) = (each for each in report.figures if each.name == name)
    return figure.source


def _token_lines(report: PowerBreakdown) -> Iterator[str]:
    if report.tokens_per_megawatt:
        yield ""
        yield from table_lines(table_of(_PER_MEGAWATT, report.tokens_per_megawatt))
    if report.cost is not None:
        cost = report.cost
        kinds = {
            "output": cost.dollars_per_million_output,
            "input": cost.dollars_per_million_input,
            "total": cost.dollars_per_million_total,
        }
        yield ""
        yield (
            f"dollars an hour: {cost.machine_dollars_per_hour:,.2f} machines + "
            f"{cost.energy_dollars_per_hour:,.2f} energy"
        )
        yield "dollars per million tokens: " + ", ".join(
            f"{kind} {NOTHING if price is None else f'{price:,.4f}'}"
            for kind, price in kinds.items()
        )


_FIGURES: Final[tuple[Column[SourcedFigure], ...]] = (
    Column("figure", lambda each: each.name, align="left"),
    Column("value", lambda each: each.value, four_digits),
    Column("unit", lambda each: each.unit, align="left"),
    Column("source", lambda each: each.source, align="left"),
)
_PER_MEGAWATT: Final[tuple[Column[PowerEfficiency], ...]] = (
    Column("tokens/s/MW", lambda each: each.basis.value, align="left"),
    Column("output", lambda each: each.output, ",.0f"),
    Column("input", lambda each: each.input, ",.0f"),
    Column("total", lambda each: each.total, ",.0f"),
    Column("watts", lambda each: each.watts, ",.0f"),
    Column("", lambda each: each.why, align="left"),
)
