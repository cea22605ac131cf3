"""A report before it has a form: titled sections of facts, lines and tables, and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from reporting.numbers import NOTHING, number

if TYPE_CHECKING:
    from reporting.charts import TitledChart

UNKNOWN: Final = "not reported by the server"

Tone = Literal["plain", "good", "bad", "dim"]
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The words of a table's cell, with a tone."""

    words: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: label, unit, the value that it takes from a row, and the value's format.

    `form` is a format specification or a function, of the value over `scale`. Without `value` a row
    is a sequence of cells. Where space is short, all columns of the highest `rank` are left out
    first; rank 0 always stays.
    """

    label: str
    value: Callable[[Row], object] | None = None
    form: str | Callable[[Any], str] = number
    unit: str = field(default="", kw_only=True)
    scale: float = field(default=1.0, kw_only=True)
    align: Literal["left", "right"] = field(default="right", kw_only=True)
    rank: int = field(default=0, kw_only=True)
    tone: Tone = field(default="plain", kw_only=True)

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} {self.unit}".strip()

    def cell(self, row: Any, place: int) -> Cell:
        """A row's cell at the column's own `place`. A Cell and a str stand as they are."""
        found = row[place] if self.value is None else self.value(row)
        if isinstance(found, Cell):
            return found
        return Cell(words=self._words(found), tone=self.tone)

    def _words(self, found: Any) -> str:
        if isinstance(found, str):
            return found
        if found is None:
            return NOTHING
        scaled = found if self.scale == 1 else found / self.scale
        return self.form(scaled) if callable(self.form) else format(scaled, self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Names and values; an empty name continues the one before."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of formatted cells; see `table_of`."""

    title: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Sentences below a title, each a line of its own."""

    title: str = ""
    rows: tuple[str, ...]


Section = Facts | Table | Lines


def table_of(
    columns: Iterable[Column[Row]], rows: Iterable[Row], *, title: str = "", foot: str = ""
) -> Table:
    """The table of `rows`; raises IndexError for a sequence that is too short."""
    columns = tuple(columns)
    cells = tuple(
        tuple(column.cell(row, place) for place, column in enumerate(columns)) for row in rows
    )
    return Table(title=title, columns=columns, rows=cells, foot=foot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report. `verdict` is its outcome in a line; `command` repeats its subject."""

    title: str
    subtitle: str = ""
    sections: tuple[Section, ...]
    verdict: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """A row of the CSV form: one statistic of one figure, with its 95 % interval if it has one."""

    traffic_class: str
    figure: str
    statistic: str = ""
    unit: str = ""
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


class ReportDocument(Protocol):
    """A report that can be written in every form."""

    def document(self) -> Document:
        """For people."""

    def fields(self) -> object:
        """For programs: the values of JSON; None for an unknown one."""

    def figures(self) -> tuple[FigureRow, ...]:
        """For spreadsheets: a row for every figure."""

    def charts(self) -> tuple[TitledChart, ...]:
        """In display order."""
