"""All chips as a scrolling table, a row each."""

from collections.abc import Callable, Mapping
from typing import Final

from rich.text import Text
from textual.widgets import DataTable

from serving.telemetry.neuron_tools.heat_grid import hbm_share
from serving.telemetry.neuron_tools.shown_numbers import memory, percent
from serving.telemetry.neuron_tools.top_figures import TopChip, TopFigures

COLUMNS: Final[Mapping[str, Callable[[TopChip], str]]] = {
    "ND": lambda chip: str(chip.chip),
    "rack": lambda chip: str(chip.rack),
    "tray": lambda chip: str(chip.tray),
    "at": lambda chip: str(chip.position),
    "rank": lambda chip: "-" if chip.rank is None else str(chip.rank),
    "doing": lambda chip: f"{chip.doing}, slow" if chip.slow else chip.doing,
    "cores": lambda chip: f"{min(chip.cores)}-{max(chip.cores)}",
    "util": lambda chip: percent(chip.utilization),
    "TFLOPS": lambda chip: f"{chip.flops_per_s / 1e12:,.1f}",
    "HBM": lambda chip: memory(chip.hbm_used_bytes),
    "HBM %": lambda chip: percent(hbm_share(chip)),
    "W": lambda chip: f"{chip.watts:,.0f}",
    "links": lambda chip: percent(chip.link_utilization),
}


class ChipTable(DataTable[Text]):
    """Rows keep their places between snapshots; only changed cells are written."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True)
        self._shown: dict[int, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        """Add the columns."""
        for name in COLUMNS:
            self.add_column(name, key=name)

    def show(self, figures: TopFigures) -> None:
        """Show the chips of a snapshot."""
        if self._shown.keys() != {chip.chip for chip in figures.chips}:
            self.clear()
            self._shown = {}
        for chip in figures.chips:
            cells = tuple(cell(chip) for cell in COLUMNS.values())
            before = self._shown.get(chip.chip)
            if before is None:
                texts = (Text(cell, justify="right") for cell in cells)
                self.add_row(*texts, key=str(chip.chip))
            else:
                for name, then, now in zip(COLUMNS, before, cells, strict=True):
                    if then != now:
                        text = Text(now, justify="right")
                        self.update_cell(str(chip.chip), name, text, update_width=True)
            self._shown[chip.chip] = cells
