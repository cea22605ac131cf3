"""A report as a person reads it in a terminal."""

import re
from typing import Final

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from loadgen.reports.document import Cell, Facts, Grid, ReportDocument

PLAIN_WIDTH: Final = 110
"""Columns of a report that goes to a file."""
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but the end of a line
_STYLES: Final = {"plain": "", "good": "green", "bad": "bold red", "dim": "dim"}


def report_console() -> Console:
    """Standard output: as wide as its terminal, or PLAIN_WIDTH where it is none."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def print_report(report: ReportDocument, console: Console) -> None:
    """Print the whole report; tables leave out columns that the console is too narrow for."""
    document = report.document()
    console.print(Rule(_shown(document.title, "bold"), align="left", style="dim"))
    if document.subtitle:
        console.print(_shown(document.subtitle, "dim"))
    if document.verdict:
        console.print(_shown(document.verdict, "bold"))
    for section in document.sections:
        console.print()
        console.print(_shown(section.title, "bold cyan"))
        if isinstance(section, Facts):
            console.print(_facts(section))
        else:
            _print_grid(section, console)
    if document.notes:
        console.print()
        console.print(Text("notes", style="bold cyan"))
        console.print(_notes(document.notes))
    if document.command:  # not folded: it is there to be copied
        console.print()
        console.print(_shown(f"repeat: {document.command}", "dim"), soft_wrap=True)


def _facts(facts: Facts) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.rows:
        table.add_row(_shown(name), _shown(value))
    return table


def _notes(notes: tuple[str, ...]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="yellow")
    table.add_column(overflow="fold")
    for note in notes:
        table.add_row("!", _shown(note))
    return table


def _print_grid(grid: Grid, console: Console) -> None:
    """Print the table with all columns that fit."""
    shown = list(range(len(grid.columns)))
    table = _table(grid, shown)
    while console.measure(table, options=console.options.update(width=10_000)).maximum > (
        console.width
    ):
        ranks = [grid.columns[place].rank for place in shown]
        if not any(ranks):
            break
        shown = [place for place in shown if grid.columns[place].rank != max(ranks)]
        table = _table(grid, shown)
    console.print(table)
    if grid.foot:
        console.print(_shown(grid.foot, "dim"))


def _table(grid: Grid, shown: list[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold")
    for place in shown:
        column = grid.columns[place]
        table.add_column(
            Text(column.title),
            justify="left" if column.words else "right",
            overflow="fold",
        )
    for row in grid.rows:
        table.add_row(*(_text(row[place]) for place in shown))
    return table


def _text(cell: str | Cell) -> Text:
    return _shown(cell) if isinstance(cell, str) else _shown(cell.words, _STYLES[cell.tone])


def _shown(words: str, style: str = "") -> Text:
    """The words as they are: a server's, or a file's, are neither markup nor orders to a terminal.

    Control characters, which could move the cursor or rewrite lines above, are shown as `\ufffd`.
    """
    return Text(_CONTROL.sub("\ufffd", words), style=style)
