"""Chips by position as coloured cells, and few cores as bars.

A cell has its value in figures too, and faults in letters: colours need not be told apart. They are
cividis', made for colour-blind eyes. Source: Nunez, Anderton and Renslow, "Optimizing colormaps
with consideration for color vision deficiency", 2018; values as in matplotlib, about every ninth.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from serving.telemetry.neuron_tools.shown_numbers import percent, three_wide
from serving.telemetry.neuron_tools.top_figures import TopChip, TopFigures

_RAMP: Final = (
    ("#00224e", "#ffffff"),
    ("#213b6e", "#ffffff"),
    ("#4c556c", "#ffffff"),
    ("#6c6e72", "#ffffff"),
    ("#8e8978", "#000000"),
    ("#b2a570", "#000000"),
    ("#d9c55c", "#000000"),
    ("#fee838", "#000000"),
)
_LETTERS: Final = {
    "lost": ("XX", "bold white on #b00020"),
    "hung": ("HH", "bold white on #b00020"),
    "draining": ("DR", ""),
    "training": ("TR", "black on #c9a3ff"),
    "maintenance": ("MT", "black on #c9c9c9"),
    "restoring": ("RE", "black on #9ad0f5"),
    "spare": ("--", "dim"),
    "out": ("..", "dim"),
}
_CELL: Final = 4
_NUMBER: Final = 5
_CELLS_MAX: Final = 4  # of a line, so that a tray of 16 chips is a square
_CORES_MAX: Final = 64
_BAR: Final = 20
_FEW_LINES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMeasure:
    """Content of a cell: a value in `unit`, and its share of the maximum."""

    name: str
    unit: str
    value: Callable[[TopChip], float]
    share: Callable[[TopChip, TopFigures], float]


MEASURES: Final = (
    HeatMeasure(
        name="utilization",
        unit="%",
        value=lambda chip: 100 * chip.utilization,
        share=lambda chip, _: chip.utilization,
    ),
    HeatMeasure(
        name="rate",
        unit="TFLOPS",
        value=lambda chip: chip.flops_per_s / 1e12,
        share=lambda chip, all_: chip.flops_per_s / all_.flops_ceiling_per_s,
    ),
    HeatMeasure(
        name="HBM",
        unit="%",
        value=lambda chip: 100 * hbm_share(chip),
        share=lambda chip, _: hbm_share(chip),
    ),
    HeatMeasure(
        name="power",
        unit="W",
        value=lambda chip: chip.watts,
        share=lambda chip, all_: chip.watts / all_.chip_watts_ceiling,
    ),
    HeatMeasure(
        name="links",
        unit="%",
        value=lambda chip: 100 * chip.link_utilization,
        share=lambda chip, _: chip.link_utilization,
    ),
)
"""neuron-top toggles between the first two."""


def hbm_share(chip: TopChip) -> float:
    """Owned part of the chip's HBM; 0 where all stacks have failed."""
    return chip.hbm_used_bytes / chip.hbm_capacity_bytes if chip.hbm_capacity_bytes else 0.0


def style_of(share: float) -> str:
    """Colours of a share from 0 to 1."""
    step = min(int(max(share, 0.0) * len(_RAMP)), len(_RAMP) - 1)
    ground, figure = _RAMP[step]
    return f"{figure} on {ground}"


def grid_lines(figures: TopFigures, measure: HeatMeasure, *, width: int = 0) -> list[Text]:
    """Racks side by side, a tray in one or more lines, none for racks and trays without chips;
    chips' numbers stand beside them if `width` suffices.
    """
    racks = sorted({chip.rack for chip in figures.chips})
    trays = sorted({chip.tray for chip in figures.chips})
    place = {(chip.rack, chip.tray, chip.position): chip for chip in figures.chips}
    per_line = min(figures.chips_per_tray, _CELLS_MAX)
    numbered = width >= len(racks) * (4 + per_line * (_NUMBER + _CELL)) + 2 * (len(racks) - 1)
    lines = [_rack_titles(racks, per_line * (_CELL + _NUMBER * numbered))]
    for tray in trays:
        for first in range(0, figures.chips_per_tray, per_line):
            line = Text()
            for number, rack in enumerate(racks):
                line.append("  " if number else "")
                line.append(f"{f'T{tray}' if first == 0 else '':<4}", style="dim")
                for position in range(first, min(first + per_line, figures.chips_per_tray)):
                    chip = place.get((rack, tray, position))
                    if numbered:
                        shown = "" if chip is None else str(chip.chip)
                        line.append(f"{shown:>{_NUMBER - 1}} ", style="dim")
                    line.append_text(_cell(chip, figures, measure))
            lines.append(line)
    return lines


def _rack_titles(racks: list[int], width: int) -> Text:
    titles = "  ".join(f"{f'Rack {rack}':<{4 + width}}" for rack in racks)
    return Text(titles.rstrip(), style="bold")


def _cell(chip: TopChip | None, figures: TopFigures, measure: HeatMeasure) -> Text:
    if chip is None:
        return Text(" " * _CELL)
    letters, style = _LETTERS.get(chip.doing, ("", ""))
    if letters and not chip.works:
        return Text(f"{letters:>3} ", style=style)
    value = f"{three_wide(measure.value(chip))}"
    mark = "d" if chip.doing == "draining" else "!" if chip.slow else " "
    return Text(f"{value}{mark}"[:_CELL], style=style_of(measure.share(chip, figures)))


def few_cores(figures: TopFigures) -> bool:
    """Whether every core can have a bar."""
    return len(figures.chips) * figures.cores_per_chip <= _CORES_MAX


def core_lines(figures: TopFigures, measure: HeatMeasure) -> Iterator[Text]:
    """A bar for each core, in columns, as neuron-top draws them."""
    entries = [
        _core_bar(chip, core, figures, measure)
        for chip in figures.chips
        for core in range(figures.cores_per_chip)
    ]
    rows = max(min(len(entries), _FEW_LINES), -(-len(entries) // 2))
    for row in range(rows):
        line = Text()
        for entry in entries[row::rows]:
            line.append_text(entry)
            line.append("  ")
        line.rstrip()
        yield line


def _core_bar(chip: TopChip, core: int, figures: TopFigures, measure: HeatMeasure) -> Text:
    """A bar such as ND0 NC3 [█████·····] 50.0%: the core's even part of its chip's work."""
    text = Text(f"ND{chip.chip:<3}NC{chip.chip * figures.cores_per_chip + core:<3} ")
    letters, style = _LETTERS.get(chip.doing, ("", ""))
    if letters and not chip.works:
        text.append(f"{chip.doing:^{_BAR + 2}}", style=style)
        text.append(" " * 8)
        return text
    share = max(min(measure.share(chip, figures), 1.0), 0.0)
    full = round(share * _BAR)
    text.append("[")
    text.append("█" * full, style=_RAMP[-1][0])
    text.append("·" * (_BAR - full), style="dim")
    text.append("]")
    value = measure.value(chip)
    if measure.unit != "%":
        value /= figures.cores_per_chip
    text.append(f"{value:7.1f}" + ("%" if measure.unit == "%" else ""))
    if chip.slow:
        text.append("!", style="bold")
    return text


def caption(figures: TopFigures, measure: HeatMeasure) -> str:
    """Title and sum of the drawing, after neuron-top's section title."""
    cores = len(figures.chips) * figures.cores_per_chip
    whole = figures.flops_per_s / 1e12
    return (
        f"{figures.core_version} {measure.name} {measure.unit}: {cores:,} NC "
        f"{percent(figures.utilization)} {whole:,.0f} TF"
    )


LEGEND: Final = (
    "XX lost  HH hung  DR/d draining  TR training  RE restoring  -- spare  .. out  ! slow"
)
