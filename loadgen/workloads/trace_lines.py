"""Files of recorded traffic, line by line: the first wrong row stops the reading.

A trace with holes would be another workload, so no row is skipped silently: it is read, or refused
with file, line and reason.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from loadgen.errors import FileError

TOKENS_MAX: Final = 10_000_000  # longer than any context that exists: a slip of a column, not a row


_GZIP: Final = b"\x1f\x8b"


class TraceRow(NamedTuple):
    """One recorded request: its time, by the trace's clock, and its lengths.

    `blocks` names the blocks of its prompt, if recorded.
    """

    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_text(path: Path) -> str:
    """Read the file, gzipped or not; raises FileError if it cannot be read or is not text."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise FileError(path, "is not UTF-8 text") from error


def read_bytes(path: Path, at_most: int = -1) -> bytes:
    """The file's first bytes (default: all), unzipped if gzipped; raises FileError."""
    try:
        with path.open("rb") as file:
            is_compressed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            if not is_compressed:
                return file.read(at_most)
            with gzip.GzipFile(fileobj=file) as whole:
                return whole.read(at_most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(path, "its gzip data is damaged or not whole") from error
    except OSError as error:
        raise FileError(path, error.strerror or str(error)) from error


def read_lines(path: Path) -> list[str]:
    """The lines as an editor numbers them, without their ends; raises FileError."""
    lines = read_text(path).split("\n")  # not splitlines, which knows more ends than an editor
    if lines[-1] == "":
        lines.pop()
    return lines


def read_csv(path: Path, *headers: str) -> tuple[str, list[str]]:
    """Read a CSV's header, one of `headers`, and its other lines; raises FileError."""
    lines = read_lines(path)
    if not lines or lines[0] not in headers:
        found = lines[0].strip()[:80] if lines else ""
        raise FileError(path, f"expected the header {headers[0]}, found {found!r}", line=1)
    return lines[0], lines[1:]


def read_rows(
    path: Path, lines: Iterable[str], *, first_line: int, read: Callable[[str], TraceRow | None]
) -> Iterator[TraceRow]:
    """Read each line by `read`: None leaves a row out, ValueError means a wrong one.

    Raises FileError for the first wrong row, for falling times, and if no row is left.
    """
    previous_ns, none = 0, True
    for number, line in enumerate(lines, start=first_line):
        try:
            row = read(line)
            if row is None:
                continue
            if row.at_ns < previous_ns:
                raise ValueError("its timestamp is before that of the row above")
        except ValueError as error:
            raise FileError(path, str(error), line=number) from error
        previous_ns, none = row.at_ns, False
        yield row
    if none:
        raise FileError(path, "has no row")


def csv_fields(line: str, count: int) -> list[str]:
    """Split a line of an unquoted CSV; raises ValueError for another number of fields."""
    fields = line.split(",")
    if len(fields) != count:
        found = len(fields) if line else "an empty line"
        raise ValueError(f"expected {count} fields, found {found}")
    return fields


def read_tokens(column: str, text: str, *, least: int = 1) -> int:
    """Read a length in tokens; raises ValueError naming the column."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{column} {text[:40]!r} is not a whole number")
    if len(text) > len(str(TOKENS_MAX)) or not least <= int(text) <= TOKENS_MAX:
        raise ValueError(f"{column} {text[:40]} is not in {least} to {TOKENS_MAX:,}")
    return int(text)


_SECONDS = re.compile(r"(\d{1,12})(?:\.(\d{0,9}))?", re.ASCII)


def read_seconds_ns(column: str, text: str) -> int:
    """Read decimal seconds as whole ns, exactly; raises ValueError."""
    matched = _SECONDS.fullmatch(text)
    if matched is None:
        raise ValueError(f"{column} {text[:40]!r} is not a number of seconds")
    return int(matched[1]) * 1_000_000_000 + int((matched[2] or "").ljust(9, "0"))
