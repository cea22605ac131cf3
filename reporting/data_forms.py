"""A report for programs: JSON, and CSV with a row for each statistic of each figure."""

import csv
import io
from typing import Final

import msgspec

from reporting.document import ReportDocument

COLUMNS: Final = (
    *("class", "figure", "statistic", "unit", "value"),
    *("low_95", "high_95", "samples"),
)


def to_csv(report: ReportDocument) -> str:
    """The report as CSV with a header row (RFC 4180); unknown values are empty.

    Columns of some rows only come last, in order of appearance.
    """
    rows = report.figures()
    extra = tuple(dict.fromkeys(name for row in rows for name in row.extra))
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow((*COLUMNS, *extra))
    for row in rows:
        writer.writerow(
            (
                *map(text_cell, (row.traffic_class, row.figure, row.statistic, row.unit)),
                *("" if x is None else repr(x) for x in (row.value, row.low, row.high)),
                "" if row.samples is None else row.samples,
                *(text_cell(row.extra.get(name, "")) for name in extra),
            )
        )
    return file.getvalue()


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that start a formula in a spreadsheet, which runs it."""


def text_cell(words: str) -> str:
    """The words, after an apostrophe where a spreadsheet would run them; numbers unchanged."""
    if not words.startswith(_FORMULA):
        return words
    try:
        float(words)
    except ValueError:
        return f"'{words}"
    return words


def to_json(report: ReportDocument) -> str:
    """The report as JSON text."""
    return f"{json_text(report.fields())}\n"


def json_text(value: object) -> str:
    """Indented, deterministic JSON; frozen types by their field names, NaN is null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
