"""The catalog's overview: a line per chip and per system."""

from collections.abc import Iterable, Iterator
from typing import Any

from emulator.specs.assumptions import AssumptionSet
from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import GB, GIB
from reporting.document import Column, table_of
from reporting.plain_text import table_lines
from serving.commands.catalog_section import joined

_NONE = "-"
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


def overview_lines() -> Iterator[str]:
    """Two tables, of chips and of systems, and a legend."""
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
    yield f"* assumed   {_UNKNOWN} unpublished   {_NONE} has none"
    yield "ultraserve describe NAME [--assumption SWITCH=ASSUMPTION]: each figure with its source."


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
        return _NONE
    value = figure.value / unit
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" + ("*" if figure.assumed else " ")
