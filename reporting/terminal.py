"""A report in a terminal: in its width, with colours."""

import re
from typing import Final

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from reporting.document import Facts, Lines, ReportDocument, Table

PLAIN_WIDTH: Final = 110
"""Columns of a report that goes to a file."""
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but the end of a line
_STYLES: Final = {"plain": "", "good": "green", "bad": "bold red", "dim": "dim"}


def report_console() -> Console:
    """Standard output, as wide as its terminal, or PLAIN_WIDTH for a file."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def print_report(report: ReportDocument, console: Console) -> None:
    """Print the whole report; tables leave out columns that do not fit."""
    document = report.document()
    console.print(Rule(_shown(document.title, "bold"), align="left", style="dim"))
    if document.subtitle:
        console.print(_shown(document.subtitle, "dim"))
    if document.verdict:
        console.print(_shown(document.verdict, "bold"))
    for section in document.sections:
        console.print()
        console.print(_shown(section.title, "bold cyan"))
        match section:
            case Facts():
                console.print(_facts(section))
            case Table():
                _print_table(section, console)
            case Lines():
                console.print("\n".join(section.rows), markup=False)
    if document.notes:
        console.print()
        console.print(Text("notes", style="bold cyan"))
        console.print(_notes(document.notes))
    if document.command:  # not folded: it is there to be copied
        console.print()
        console.print(_shown(f"repeat: {document.command}", "dim"), soft_wrap=True)


def _facts(facts: Facts) -> RichTable:
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.rows:
        table.add_row(_shown(name), _shown(value))
    return table


def _notes(notes: tuple[str, ...]) -> RichTable:
    table = RichTable.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="yellow")
    table.add_column(overflow="fold")
    for note in notes:
        table.add_row("!", _shown(note))
    return table


def _print_table(table: Table, console: Console) -> None:
    shown = list(range(len(table.columns)))
    drawn = _table(table, shown)
    while console.measure(drawn, options=console.options.update(width=10_000)).maximum > (
        console.width
    ):
        ranks = [table.columns[place].rank for place in shown]
        if not any(ranks):
            break
        shown = [place for place in shown if table.columns[place].rank != max(ranks)]
        drawn = _table(table, shown)
    console.print(drawn)
    if table.foot:
        console.print(_shown(table.foot, "dim"))


def _table(table: Table, shown: list[int]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold")
    for place in shown:
        column = table.columns[place]
        drawn.add_column(Text(column.heading), justify=column.align, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_shown(row[place].words, _STYLES[row[place].tone]) for place in shown))
    return drawn


def _shown(words: str, style: str = "") -> Text:
    """Text without markup; control characters, which could rewrite lines above, as `\ufffd`."""
    return Text(_CONTROL.sub("\ufffd", words), style=style)
