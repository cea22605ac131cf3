"""A report as CSV, for spreadsheets: a row for each statistic of each figure."""

import csv
import io
from typing import Final

from loadgen.reports.csv_cell import text_cell
from loadgen.reports.document import ReportDocument

COLUMNS: Final = (
    *("class", "figure", "statistic", "unit", "value"),
    *("low_95", "high_95", "samples"),
)


def to_csv(report: ReportDocument) -> str:
    """Return the report as CSV text with a header row (RFC 4180); unknown values are empty.

    Columns that only some rows have come last, in the order in which they are met.
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
