"""One entry of the catalog, of any kind, for `ultraserve describe`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emulator.compute.text_cost import text_figures
from emulator.errors import ConfigError
from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.assumptions import Assumption, AssumptionSet, with_assumptions
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import NamedFigures
from emulator.specs.models import MODELS
from emulator.specs.name_suggestions import did_you_mean
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS

ShownSwitch = tuple[AssumptionSet, Assumption | None]
"""A switch, and its active assumption or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One entry of the catalog, to be printed.

    Attributes:
        about: one line; empty where the figures suffice.
        announced: not delivered yet.
        unknown: names of unpublished figures.
        status: why it cannot be timed; empty when it can.
    """

    kind: str
    name: str
    about: str = ""
    announced: bool = False
    figures: NamedFigures
    core_maps: tuple[CoreMap, ...] = ()
    switches: tuple[ShownSwitch, ...] = ()
    unknown: tuple[str, ...] = ()
    status: str = ""


def catalog_sections() -> tuple[CatalogEntry, ...]:
    """Every chip and system."""
    return tuple(section for section in _catalog() if section.kind != "model")


def sections_of(name: str, assumptions: Sequence[str] = ()) -> tuple[CatalogEntry, ...]:
    """The entry of that name in any case, then a system's chip; raises ConfigError."""
    asked, name = name, name.lower()
    if name in SYSTEMS:
        system = with_assumptions(SYSTEMS[name], assumptions)
        return _of_system(system), _of_chip(system.chip)
    if name in CHIPS:
        return (_of_chip(with_assumptions(CHIPS[name], assumptions)),)
    names = {name, *(sheet.name for sheet in DATA_SHEETS.values() if name in sheet.aliases)}
    found = tuple(section for section in _catalog() if section.name in names)
    if not found:
        known = [section.name for section in _catalog()]
        raise ConfigError("name", asked, f"one of {', '.join(known)}{did_you_mean(asked, known)}")
    if assumptions:
        raise ConfigError("assumption", assumptions[0], f"nothing: {name} has no switches")
    return found


def _catalog() -> Iterator[CatalogEntry]:
    yield from map(_of_chip, CHIPS.values())
    yield from map(_of_data_sheet, DATA_SHEETS.values())
    yield from map(_of_system, SYSTEMS.values())
    for model in MODELS.values():
        figures = (*model.figures(), *text_figures(model))
        yield CatalogEntry(kind="model", name=model.name, figures=figures)


def _of_chip(chip: ChipSpec) -> CatalogEntry:
    has_logical_cores = chip.lnc_sizes != (chip.cores.count,)
    return CatalogEntry(
        kind="chip",
        name=chip.name,
        about=chip.maker,
        announced=chip.announced,
        figures=chip.figures(),
        core_maps=tuple(core_map(chip, lnc) for lnc in chip.lnc_sizes if has_logical_cores),
        switches=_shown(chip, chip.switches),
    )


def _of_data_sheet(sheet: DataSheet) -> CatalogEntry:
    return CatalogEntry(
        kind="chip",
        name=sheet.name,
        about=sheet.maker,
        announced=sheet.announced,
        figures=sheet.figures(),
        unknown=sheet.unknown,
        status=sheet.status,
    )


def _of_system(system: SystemSpec) -> CatalogEntry:
    parts = (f"{system.chips.count} x {system.chip.name}", joined(system), system.switch_generation)
    return CatalogEntry(
        kind="system",
        name=system.name,
        about=", ".join(filter(None, parts)),
        figures=system.figures(),
        switches=_shown(system, system.variants),
    )


def joined(system: SystemSpec) -> str:
    """Topology of the chips, with a torus's dimensions."""
    return " ".join(filter(None, (system.topology, "x".join(map(str, system.torus)))))


def _shown(
    spec: ChipSpec | SystemSpec, switches: tuple[AssumptionSet, ...]
) -> tuple[ShownSwitch, ...]:
    return tuple((switch, switch.assumption_of(spec)) for switch in switches)
