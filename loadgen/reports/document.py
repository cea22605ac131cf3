"""What a report says, before it has a form: titled sections of facts and of tables, and notes.

Terminal, Markdown and HTML show the same document; what it says is decided by `run_report`,
`comparison_report` and `sweep_report`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

UNKNOWN: Final = "not reported by the server"
NOTHING: Final = "-"

Tone = Literal["plain", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A word of a table that is good or bad news."""

    words: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. Where there is too little room, those of the largest `rank` are left out first,
    all of them together; rank 0 always stays. Numbers stand on the right.
    """

    title: str
    rank: int = 0
    words: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and what they are; a name that is empty goes on with the one before."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table. Every row has a word for every column; raises ValueError otherwise."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    foot: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: a row has not {len(self.columns)} cells")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report. `verdict` is what it comes to, in a line; `command` does it all again."""

    title: str
    subtitle: str
    sections: tuple[Facts | Grid, ...]
    verdict: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """A row of the CSV form: one statistic of one figure, with its 95 % interval if it has one."""

    traffic_class: str
    figure: str
    statistic: str
    unit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


class ReportDocument(Protocol):
    """A report that can be written in every form."""

    def document(self) -> Document:
        """For people."""
        ...

    def fields(self) -> Mapping[str, object]:
        """For programs: JSON's values; None for what is not known."""
        ...

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: a row for every figure."""
        ...


def plain(cell: str | Cell) -> str:
    """The words of a cell."""
    return cell if isinstance(cell, str) else cell.words
