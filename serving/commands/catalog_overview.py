"""The catalog in a line per chip and per system, for who does not know yet what to ask for."""

from collections.abc import Iterator

from emulator.specs.chip import ChipSpec
from emulator.specs.chips import CHIPS, DATA_SHEETS
from emulator.specs.data_sheet import DataSheet
from emulator.specs.figure import Figure
from emulator.specs.system import SystemSpec
from emulator.specs.systems import SYSTEMS
from emulator.units import GB, GIB
from serving.commands.catalog_section import joined
from serving.commands.text_table import table_lines

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
    """Two tables, of chips and of systems, and how to read them."""
    chips = [("chip", "maker", *(title for title, _, _ in _CHIP_COLUMNS), "")]
    chips += [_chip_row(chip) for chip in CHIPS.values()]
    chips += [_chip_row(sheet) for sheet in DATA_SHEETS.values()]
    yield from table_lines(chips, right=frozenset(range(2, 2 + len(_CHIP_COLUMNS))))
    yield ""
    header = ("system", "chips", "of", "joined", *(title for title, _, _ in _SYSTEM_COLUMNS))
    systems = [(*header, "switches")]
    systems += [_system_row(system) for system in SYSTEMS.values()]
    numbers = {1, *range(4, 4 + len(_SYSTEM_COLUMNS))}
    yield from table_lines(systems, right=frozenset(numbers))
    yield ""
    yield "Dense rates; links per direction, inside a tray; GB = 10^9 bytes."
    yield f"* assumed   {_UNKNOWN} unpublished   {_NONE} has none"
    yield "ultraserve describe NAME [--assumption SWITCH=ASSUMPTION]: each figure with its source."


def _chip_row(chip: ChipSpec | DataSheet) -> tuple[str, ...]:
    figures = dict(chip.figures())
    unknown = chip.unknown if isinstance(chip, DataSheet) else ()
    cells = (
        _UNKNOWN if label in unknown else _cell(figures.get(label), unit)
        for _, label, unit in _CHIP_COLUMNS
    )
    if isinstance(chip, DataSheet):
        note = "announced, cannot be timed" if chip.announced else "cannot be timed"
    else:
        note = _switch_names(chip)
    return (chip.name, chip.maker, *cells, note)


def _system_row(system: SystemSpec) -> tuple[str, ...]:
    figures = dict(system.figures())
    cells = (_cell(figures.get(label), unit) for _, label, unit in _SYSTEM_COLUMNS)
    switches = ", ".join(switch.name for switch in system.variants)
    chips = str(system.chips.count)
    return (system.name, chips, system.chip.name, joined(system), *cells, switches)


def _switch_names(chip: ChipSpec) -> str:
    names = ", ".join(switch.name for switch in chip.switches)
    return f"switches: {names}" if names else ""


def _cell(figure: Figure | None, unit: float) -> str:
    if figure is None:
        return _NONE
    value = figure.value / unit
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" + ("*" if figure.assumed else " ")
