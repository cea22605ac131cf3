"""The catalog as text: a line for each chip and system, or one whole entry."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from emulator.memory.lnc import CoreMap
from emulator.specs.assumptions import AssumptionSet
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import Figure
from emulator.specs.figure_changes import ALIASES
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import GB, GIB
from reporting.document import Column, table_of
from reporting.numbers import NOTHING, with_prefix
from reporting.plain_text import table_lines
from serving.commands.catalog_section import CatalogEntry, ShownSwitch, joined

_UNKNOWN = "?"
_TERA = 1e12
_CHIP_COLUMNS = (
    ("bf16 TFLOPS", "tensor_bf16_flops_per_s", _TERA),
    ("fp8 TFLOPS", "tensor_fp8_flops_per_s", _TERA),
    ("fp4 TFLOPS", "tensor_fp4_flops_per_s", _TERA),
    ("HBM GiB", "hbm_bytes", GIB),
    ("HBM TB/s", "hbm_bytes_per_s", _TERA),
    ("link GB/s", "link_tray_bytes_per_s", GB),
    ("network GB/s", "scale_out_bytes_per_s", GB),
    ("budget W", "budget_watts", 1),
)
_SYSTEM_COLUMNS = (
    ("fp8 PFLOPS", "total_fp8_flops_per_s", 1e15),
    ("HBM TiB", "total_hbm_bytes", 1_024 * GIB),
    ("HBM TB/s", "total_hbm_bytes_per_s", _TERA),
    ("given kW", "provisioned_watts", 1e3),
)
_SOURCED: Final[tuple[Column[tuple[str, ...]], ...]] = (
    Column("figure", align="left"),
    Column("value"),
    Column("unit", align="left"),
    Column("source", align="left"),
)
_UNTITLED: Final[tuple[Column[tuple[str, ...]], ...]] = (
    Column("", align="left"),
    Column(""),
    Column("", align="left"),
)

_ALIASES: Final[tuple[Column[tuple[str, ...]], ...]] = (
    Column("", align="left"),
    Column("", align="left"),
)


def overview_lines() -> Iterator[str]:
    """Tables of chips and systems, and a legend."""
    chips: list[Column[ChipSpec | DataSheet]] = [
        Column("chip", lambda chip: chip.name, align="left"),
        Column("maker", lambda chip: chip.maker, align="left"),
        *_figures(_CHIP_COLUMNS),
        Column("", _note, align="left"),
    ]
    known: list[ChipSpec | DataSheet] = [*CHIPS.values(), *DATA_SHEETS.values()]
    yield from table_lines(table_of(chips, known))
    yield ""
    systems: list[Column[SystemSpec]] = [
        Column("system", lambda system: system.name, align="left"),
        Column("chips", lambda system: system.chips.count, "d"),
        Column("of", lambda system: system.chip.name, align="left"),
        Column("joined", joined, align="left"),
        *_figures(_SYSTEM_COLUMNS),
        Column("switches", lambda system: _names(system.variants), align="left"),
    ]
    yield from table_lines(table_of(systems, SYSTEMS.values()))
    yield ""
    yield "Dense rates; links per direction, inside a tray; GB = 10^9 bytes."
    yield f"* assumed   {_UNKNOWN} unpublished   {NOTHING} has none"
    yield "ultraserve describe NAME [--assumption SWITCH=ASSUMPTION]: each figure with its source."
    yield "--set FIGURE=VALUE, in every command that names a machine: what if it were another."


def _figures(columns: Iterable[tuple[str, str, float]]) -> Iterator[Column[Any]]:
    """A column for each title, figure and unit."""
    for title, label, unit in columns:

        def cell(
            of: ChipSpec | DataSheet | SystemSpec, label: str = label, unit: float = unit
        ) -> str:
            if isinstance(of, DataSheet) and label in of.unknown:
                return _UNKNOWN
            return _cell(dict(of.figures()).get(label), unit)

        yield Column(title, cell)


def _note(chip: ChipSpec | DataSheet) -> str:
    if isinstance(chip, DataSheet):
        return "announced, cannot be timed" if chip.announced else "cannot be timed"
    return f"switches: {_names(chip.switches)}" if chip.switches else ""


def _names(switches: Iterable[AssumptionSet]) -> str:
    return ", ".join(switch.name for switch in switches)


def _cell(figure: Figure | None, unit: float) -> str:
    if figure is None:
        return NOTHING
    value = figure.value / unit
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" + ("*" if figure.assumed else " ")


def section_lines(section: CatalogEntry) -> Iterator[str]:
    """A title, then a table with columns as wide as their widest cell; sources run on."""
    yield f"{section.kind} {section.name}"
    if section.about:
        yield f"  {section.about}"
    if section.status:
        yield f"  {section.status}"
    rows = [
        (label, *with_prefix(figure.value, figure.unit), figure.source)
        for label, figure in section.figures
    ]
    rows += [(label, "unknown", "", "unpublished") for label in section.unknown]
    yield from table_lines(table_of(_SOURCED, rows), indent=2)
    for shown in section.switches:
        yield ""
        yield from _switch_lines(shown)
    yield from _alias_lines(section)
    for mapped in section.core_maps:
        yield ""
        yield from _core_map_lines(mapped)


def _alias_lines(section: CatalogEntry) -> Iterator[str]:
    """Short names of figures, for `--set`."""
    labels = dict(section.figures)
    rows = [
        (name, f"{', '.join(there)}{f' ({alias.about})' if alias.about else ''}")
        for name, alias in ALIASES.items()
        if (there := [each for each in alias.figures if each in labels])
    ]
    if rows and not section.status:
        yield ""
        yield "  --set FIGURE=VALUE (2x, +10%, 230ns): what is not derived, and short names:"
        yield from table_lines(table_of(_ALIASES, rows), indent=4)


def _switch_lines(shown: ShownSwitch) -> Iterator[str]:
    """A switch: each assumption set, its reason, and its figures."""
    switch, on = shown
    yield f"  switch {switch.name}"
    for assumption in switch.assumptions:
        mark = " (on)" if assumption is on else ""
        yield f"    {switch.name}={assumption.name}{mark}: {assumption.why}"
        rows = [
            (label, *with_prefix(value.value, value.unit))
            if isinstance(value, Figure)
            else (label, value, "")
            for label, value in assumption.figures.items()
        ]
        yield from table_lines(table_of(_UNTITLED, rows), indent=6)


def _core_map_lines(mapped: CoreMap) -> Iterator[str]:
    """A line for each logical core: its physical cores and visible HBM."""
    status = "" if mapped.released else " (announced by the vendor, not released)"
    cores = "1 logical core" if len(mapped.cores) == 1 else f"{len(mapped.cores)} logical cores"
    yield f"  LNC={mapped.lnc}: {cores}{status}"
    for core in mapped.cores:
        physical, stacks = (
            f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
            for numbers in (core.physical_cores, core.stacks)
        )
        shared = ", ".join(f"NC {other}" for other in core.shares_with)
        seen_gib = len(core.stacks) * mapped.stack_bytes / GIB
        yield (
            f"    NC {core.core}: physical {physical}, HBM stack {stacks}, {seen_gib:.0f} GiB"
            + (f", shared with {shared}" if shared else "")
        )
