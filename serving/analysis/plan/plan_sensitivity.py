"""What a plan's own setting would take if one figure of the machine were another.

Every figure of the catalog's machine is moved both ways, in the steady state: chips, watts and
dollars of `SteadySetting`, without queues and without a new search. Figures that chips place
themselves by (`LAYOUT`) are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.specs.figure import Figure
from emulator.specs.figure_changes import ALIASES, LAYOUT, with_changes
from emulator.specs.system import SystemSpec
from reporting.document import Cell, Column, Lines, Section, table_of
from reporting.numbers import NOTHING, four_digits, signed_percent, with_prefix
from serving.analysis.plan.plan import Plan
from serving.analysis.plan.plan_bill import megawatts
from serving.analysis.plan.plan_steady import SteadyFleet, SteadySetting, Unable
from serving.simulator import THIS_PROCESS, SimulationWorkers

HALVED_AND_DOUBLED: Final = ("0.5x", "2x")
A_TENTH: Final = ("-10%", "+10%")
_SHARES: Final = frozenset(("share", "of peak", "facility W per IT W"))
"""Units of figures that are moved by a tenth, as others are whose double or half is impossible."""
_RATES: Final = frozenset(("bytes/s", "FLOP/s", "op/s", "bytes"))
LEAST: Final = 0.005
"""Least change of chips, watts or dollars that counts as an effect."""
_NOTHING: Final = 1e-9
SHOWN: Final = 12
_TITLE: Final = "if a figure were another, in the steady state (the plan's own setting, no queues)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFigure:
    """A figure's other value as `--set` takes it, and the fleet then; None: not a machine."""

    text: str
    fleet: SteadyFleet | Unable | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSwing:
    """A figure, or several that move together under a short name, and its two other values.

    `figure` is the first of them, on the plan's machine.
    """

    name: str
    figures: tuple[str, ...]
    figure: Figure
    low: MovedFigure
    high: MovedFigure

    def swing(self, base: SteadyFleet) -> float:
        """The largest change of chips, watts or dollars, as a share; infinite where the plan's
        setting no longer serves.
        """
        return max(_change(moved.fleet, base) for moved in (self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSensitivity:
    """The swings, the largest first; `without_effect` and `immovable` count other figures.

    `base` is on the plan's machine; None where the steady state does not serve there, and then
    there are no swings.
    """

    base: SteadyFleet | None
    swings: tuple[FigureSwing, ...]
    without_effect: int = 0
    immovable: int = 0


def sensitivity_of(plan: Plan, *, workers: SimulationWorkers = THIS_PROCESS) -> PlanSensitivity:
    """Of a plan; a second or two."""
    setting = SteadySetting.of(plan)
    base = setting.on(setting.system)
    if isinstance(base, Unable):
        return PlanSensitivity(base=None, swings=())
    names = [*_names(setting.system)]
    parts = 2 * workers.count
    given = [(setting, base, names[first::parts]) for first in range(parts)]
    found = [*chain.from_iterable(workers.map(_swings_of, given))]
    able = [each for each in found if each.low.fleet or each.high.fleet]
    moving = [each for each in able if each.swing(base) >= LEAST]
    moving.sort(key=lambda each: (-each.swing(base), each.name))
    return PlanSensitivity(
        base=base,
        swings=tuple(moving),
        without_effect=len(able) - len(moving),
        immovable=len(found) - len(able),
    )


def _names(system: SystemSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Of every figure, and of each alias of several: the name, and its figures."""
    own = dict(system.own_figures())
    for name in own:
        if name not in LAYOUT:
            yield name, (name,)
    for name, alias in ALIASES.items():
        there = tuple(each for each in alias.figures if each in own)
        if len(there) > 1:
            yield name, there


def _swings_of(
    given: tuple[SteadySetting, SteadyFleet, Sequence[tuple[str, tuple[str, ...]]]],
) -> list[FigureSwing]:
    setting, base, names = given
    own = dict(setting.system.own_figures())
    return [_swing(setting, base, name, figures, own[figures[0]]) for name, figures in names]


def _swing(
    setting: SteadySetting, base: SteadyFleet, name: str, figures: tuple[str, ...], figure: Figure
) -> FigureSwing:
    low, high = A_TENTH if figure.unit in _SHARES else HALVED_AND_DOUBLED
    if figure.unit == "W" and not all(
        _machine(setting.system, name, text) for text in HALVED_AND_DOUBLED
    ):
        low, high = A_TENTH
    # What the slower machine does not feel, the faster one does not either.
    worse_first = (low, high) if figure.unit in _RATES else (high, low)
    found: dict[str, MovedFigure] = {}
    for text in worse_first:
        felt = [_change(each.fleet, base) for each in found.values() if each.fleet]
        is_idle = figure.unit not in _SHARES and bool(felt) and felt[0] < _NOTHING
        fleet = base if is_idle else _on(setting, name, text)
        found[text] = MovedFigure(text=text, fleet=fleet)
    return FigureSwing(name=name, figures=figures, figure=figure, low=found[low], high=found[high])


def _on(setting: SteadySetting, name: str, text: str) -> SteadyFleet | Unable | None:
    system = _machine(setting.system, name, text)
    if system is None:
        return None
    try:
        return setting.on(system)
    except ConfigError:  # racks that draw more than they are given
        return None


def _machine(system: SystemSpec, name: str, text: str) -> SystemSpec | None:
    """None where there is no such machine: half a hop, a share above 1."""
    try:
        return with_changes(system, [(name, text)])
    except ConfigError:
        return None


def _change(fleet: SteadyFleet | Unable | None, base: SteadyFleet) -> float:
    if fleet is None:
        return 0.0
    if isinstance(fleet, Unable):
        return float("inf")
    pairs = [(fleet.chips, base.chips), (fleet.watts, base.watts)]
    if fleet.dollars_per_million is not None and base.dollars_per_million:
        pairs.append((fleet.dollars_per_million, base.dollars_per_million))
    return max(abs(new / old - 1) for new, old in pairs)


def sensitivity_section(found: PlanSensitivity) -> Section:
    """A table of the largest swings, for a plan's report."""
    base = found.base
    if base is None:
        return Lines(title=f"{_TITLE}:", rows=("the steady state alone does not serve here",))
    priced = base.dollars_per_million is not None
    columns: list[Column[FigureSwing]] = [
        Column("figure", lambda each: each.name, align="left"),
        Column("now", lambda each: " ".join(with_prefix(each.figure.value, each.figure.unit))),
    ]
    for side in ("low", "high"):
        columns += _side_columns(side, base, priced=priced)
    price = f", ${base.dollars_per_million:,.4g} per million tokens" if priced else ""
    left = len(found.swings) - SHOWN
    hidden = f"{left} smaller ones in JSON and --plot; " if left > 0 else ""
    return table_of(
        columns,
        found.swings[:SHOWN],
        title=f"{_TITLE}: {four_digits(base.chips)} chips, {megawatts(base.watts)}{price} now",
        foot=f"{hidden}{found.without_effect} figures change less than {100 * LEAST:g} %, "
        f"{found.immovable} cannot be moved; short names: `ultraserve describe`",
    )


def _side_columns(side: str, base: SteadyFleet, *, priced: bool) -> Iterator[Column[FigureSwing]]:
    def moved(swing: FigureSwing) -> MovedFigure:
        found: MovedFigure = getattr(swing, side)
        return found

    def change(name: str) -> Any:
        def cell(swing: FigureSwing) -> object:
            fleet = moved(swing).fleet
            if not isinstance(fleet, SteadyFleet):
                return fleet.value if fleet and name == "chips" else Cell(words=NOTHING)
            return signed_percent(getattr(fleet, name) / getattr(base, name) - 1)

        return cell

    yield Column("to", lambda each: moved(each).text)
    yield Column("chips", change("chips"))
    yield Column("MW", change("watts"))
    if priced:
        yield Column("$/M", change("dollars_per_million"))


def sensitivity_data(found: PlanSensitivity) -> dict[str, Any]:
    """The same for JSON, with all swings."""
    return {
        "of": "the plan's own setting in the steady state",
        "now": found.base,
        "least_change": LEAST,
        "figures": [
            {
                "name": swing.name,
                "figures": swing.figures,
                "value": swing.figure.value,
                "unit": swing.figure.unit,
                "moved": [_moved_data(each) for each in (swing.low, swing.high)],
            }
            for swing in found.swings
        ],
        "without_effect": found.without_effect,
        "immovable": found.immovable,
    }


def _moved_data(moved: MovedFigure) -> dict[str, Any]:
    fleet = moved.fleet
    serves = isinstance(fleet, SteadyFleet)
    why = fleet.value if isinstance(fleet, Unable) else None if serves else "no such machine"
    return {"set": moved.text, "fleet": fleet if serves else None, "why_not": why}
