"""Figures that vendors and engines publish for a model on a machine, one a row, with its source.

The file ships: `emulator/data/published_serving.csv`. Figures are as published; nothing is filled
in, an empty cell is what the source does not say.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from emulator.errors import ConfigError

FILE: Final = "published_serving.csv"
COLUMNS: Final = (
    *("model", "hardware", "engine", "precision", "layout", "isl", "osl", "requests", "users"),
    *("metric", "value", "source"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One figure; `layout` and `metric` in the source's terms, None for what it does not say.

    `requests` were all sent at once; `users` had one request at a time.
    """

    line: int
    model: str
    hardware: str
    engine: str
    precision: str
    layout: str
    prompt_tokens: int | None
    output_tokens: int | None
    requests: int | None
    users: int | None
    metric: str
    value: float
    source: str


def shipped_rows() -> tuple[PublishedRow, ...]:
    """The rows of the installed package."""
    text = files("emulator.data").joinpath(FILE).read_text(encoding="utf-8")
    return published_rows(text.splitlines(), name=FILE)


def published_rows(lines: Iterable[str], *, name: str) -> tuple[PublishedRow, ...]:
    """The rows of a CSV of COLUMNS; raises ConfigError that names the line and the column."""
    reader = csv.DictReader(lines, restkey="", restval="")
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            field=f"{name}: header", value=f"without {', '.join(missing)}", expected="these columns"
        )
    return tuple(
        _row(cells, f"{name}, line {reader.line_num}", reader.line_num) for cells in reader
    )


def _row(cells: Mapping[str, str], where: str, line: int) -> PublishedRow:
    for column in ("model", "hardware", "engine", "precision", "metric", "source"):
        if not cells[column]:
            raise ConfigError(field=f"{where}, {column}", value="nothing", expected="a word")
    value = _number(cells, "value", where)
    if value is None:
        raise ConfigError(field=f"{where}, value", value="nothing", expected="a number above 0")
    return PublishedRow(
        line=line,
        value=value,
        prompt_tokens=_count(cells, "isl", where),
        output_tokens=_count(cells, "osl", where),
        requests=_count(cells, "requests", where),
        users=_count(cells, "users", where),
        **{
            column: cells[column]
            for column in (
                *("model", "hardware", "engine", "precision", "layout", "metric", "source"),
            )
        },
    )


def _number(cells: Mapping[str, str], column: str, where: str) -> float | None:
    text = cells[column]
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(field=f"{where}, {column}", value=text, expected="a number above 0")
    return number


def _count(cells: Mapping[str, str], column: str, where: str) -> int | None:
    number = _number(cells, column, where)
    if number is None:
        return None
    if number != int(number):
        raise ConfigError(
            field=f"{where}, {column}", value=cells[column], expected="a whole number"
        )
    return int(number)
