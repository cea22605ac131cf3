"""Recorded request rates from a CSV with any header: a row has a time and a rate.

Columns are separated by commas, semicolons or tabs. A time is ISO 8601, Unix seconds or
milliseconds, or counts seconds (hours, minutes by the column's name) from the begin of the file.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from loadgen.errors import FileError, OptionError
from loadgen.records.plain_number import plain_number
from loadgen.workloads.rate_series import RateSeries, SampleError
from loadgen.workloads.trace_lines import read_text

_SEPARATORS: Final = ",;\t"
_AZURE_2024: Final = ["hour_index", "utc_hour_start", "requests_est", "rps_est"]
"""As the hourly counts of Azure's week of 2024 were digitised; the second and third are read."""
_AZURE_STEP_S: Final = 3_600.0
_SECONDS_OF: Final = {"hour": 3_600.0, "hours": 3_600.0, "minute": 60.0, "minutes": 60.0}
_TIME_NAMES: Final = {
    *("t", "ts", "time", "timestamp", "unix", "unix_s", "unix_time", "epoch", "epoch_s"),
    *("s", "second", "seconds", "time_s", "date", "datetime", *_SECONDS_OF),
}
_UNIX_S_MIN: Final = 1e8  # March 1973; three years, as a count from a file's begin
_UNIX_MS_MIN: Final = 1e11  # as seconds the year 5138
_UNIX_MS_MAX: Final = 1e14

Row: TypeAlias = tuple[int, list[str]]  # its line and its cells


@dataclass(frozen=True, slots=True, kw_only=True)
class RateColumns:
    """Names of the columns; None is found where the file leaves no choice.

    Times without a zone of their own are in `zone`, UTC where none is named.
    """

    time: str | None = None
    rate: str | None = None
    zone: tzinfo | None = None


def read_rates(path: Path, columns: RateColumns) -> tuple[RateSeries, str]:
    """The rates, and the name of their column; the first wrong row stops the reading.

    Counts under Azure's header become requests per second. Raises FileError for an unusable file,
    OptionError for a column that it does not have.
    """
    header, rows = _cells(path)
    first = rows[0][1]
    time_column = _chosen(path, "--time-column", columns.time, header)
    rate_column = _chosen(path, "--rate-column", columns.rate, header)
    unit_s = 1.0
    if header == _AZURE_2024:
        time_column = 1 if time_column is None else time_column
        if rate_column is None:
            rate_column, unit_s = 2, _AZURE_STEP_S
    if time_column is None:
        time_column = _only(path, header, _times(header, first, but=rate_column))
    if rate_column is None:
        numbers = [n for n, cell in enumerate(first) if n != time_column and _is_number(cell)]
        rate_column = _only(path, header, numbers)
    if time_column == rate_column:
        raise OptionError("--rate-column", header[rate_column], "another than the time's")
    series = _series(path, header, rows, (time_column, rate_column), columns.zone or UTC)
    return replace(series, rates=series.rates / unit_s), header[rate_column]


def _cells(path: Path) -> tuple[list[str], list[Row]]:
    """The header, and at least one other row; empty lines are left out."""
    text = read_text(path)
    line = text.lstrip("\n").split("\n", 1)[0]
    separator = max(_SEPARATORS, key=line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise FileError(path, str(error), line=reader.line_num) from error
    if not found:
        raise FileError(path, "is empty: expected a header, and times with rates")
    number, header = found[0]
    if len(header) < 2:
        reason = "expected a header of two columns or more, by commas, semicolons or tabs"
        raise FileError(path, reason, line=number)
    if any(_is_number(cell) or _is_date(cell) for cell in header):
        raise FileError(path, "expected a header with the columns' names", line=number)
    if len(found) < 2:
        raise FileError(path, "has no row below its header", line=number)
    for number, row in found:
        if len(row) != len(header):
            reason = f"expected {len(header)} columns, found {len(row)}"
            raise FileError(path, reason, line=number)
    return header, found[1:]


def _chosen(path: Path, option: str, name: str | None, header: list[str]) -> int | None:
    if name is None:
        return None
    if header.count(name) != 1:
        raise OptionError(option, name, f"one of the columns of {path}: {', '.join(header)}")
    return header.index(name)


def _times(header: list[str], first: list[str], *, but: int | None) -> list[int]:
    """Columns that may be the time: dates, else Unix times, else what is named like a time."""
    others = [column for column in range(len(header)) if column != but]
    dates = [column for column in others if _is_date(first[column])]
    numbers = [column for column in others if _is_number(first[column])]
    unix = [column for column in numbers if float(first[column]) >= _UNIX_S_MIN]
    return dates or unix or [each for each in numbers if header[each].lower() in _TIME_NAMES]


def _only(path: Path, header: list[str], columns: list[int]) -> int:
    if len(columns) != 1:
        raise FileError(
            path,
            f"expected --time-column and --rate-column, of its columns: {', '.join(header)}",
            line=1,
        )
    return columns[0]


def _series(
    path: Path, header: list[str], rows: Sequence[Row], columns: tuple[int, int], zone: tzinfo
) -> RateSeries:
    time_column, rate_column = columns
    times_s, rates = np.empty(len(rows)), np.empty(len(rows))
    read_time = _Times(header[time_column], rows[0][1][time_column], zone)
    for number, (line, row) in enumerate(rows):
        try:
            times_s[number] = read_time(row[time_column])
            rates[number] = plain_number(row[rate_column])
        except ValueError as error:
            raise FileError(path, str(error), line=line) from error
    try:
        return RateSeries.of(times_s, rates, is_unix=read_time.is_unix)
    except SampleError as error:
        raise FileError(path, str(error), line=rows[error.number][0]) from error


class _Times:
    """Reads the times of a column in seconds, all in the form of the `first`."""

    def __init__(self, name: str, first: str, zone: tzinfo) -> None:
        self._zone = zone
        self._is_date = not _is_number(first)
        first_at = 0.0 if self._is_date else float(first)
        self.is_unix = self._is_date or first_at >= _UNIX_S_MIN
        self._most = np.inf
        self._unit_s = _SECONDS_OF.get(name.lower(), 1.0)
        if self.is_unix:
            is_ms = first_at >= _UNIX_MS_MIN
            self._unit_s = 1e-3 if is_ms else 1.0
            self._most = _UNIX_MS_MAX if is_ms else _UNIX_MS_MIN

    def __call__(self, text: str) -> float:
        """Unix seconds, or those of the file's own count; raises ValueError."""
        if self._is_date:
            try:
                at = datetime.fromisoformat(text)
            except ValueError:
                reason = f"{text[:40]!r} is not a time like 2024-05-10T08:30:00Z"
                raise ValueError(reason) from None
            return (at if at.tzinfo else at.replace(tzinfo=self._zone)).timestamp()
        found = plain_number(text)
        if found >= self._most:
            raise ValueError(f"{text[:40]} is no Unix time in seconds or milliseconds")
        return found * self._unit_s


def _is_date(text: str) -> bool:
    """Whether it is ISO 8601 with its hyphens: 20240510 is a number."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "-" in text


def _is_number(text: str) -> bool:
    """Also of a number that cannot be used, such as nan: its row is refused then by name."""
    try:
        float(text)
    except ValueError:
        return False
    return True
