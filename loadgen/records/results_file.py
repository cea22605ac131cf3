"""The results file: a run as JSON lines, written as it happens and read back whole.

First `{"format": ..., "run": {...}}`, then a line per result as it ends, among them `{"skipped":
{...}}` at the end of the skipped part, last `{"end": {...}}`. Fields are those of
`records.run_record` and `records.result`. A killed run has no end, and perhaps a cut last line,
which is dropped and noted. All measures can be computed from the file.
"""

import re
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec
import numpy as np

from loadgen.errors import FileError, OptionError
from loadgen.records.arrays import Int64s
from loadgen.records.result import Result
from loadgen.records.run_record import RunEnd, RunHeader, RunRecord
from loadgen.records.server_reading import ServerReading
from loadgen.records.steady_time import steady_results

FORMAT: Final = "ultraserve-loadgen/1"

_MARK: Final = re.compile(rb'\s*\{\s*"(format|skipped|end)"\s*:')


class _Format(msgspec.Struct):
    format: str


class _FirstLine(msgspec.Struct):
    format: str
    run: RunHeader


class _SkippedLine(msgspec.Struct):
    skipped: ServerReading


class _EndLine(msgspec.Struct):
    end: RunEnd


class ResultsWriter:
    """Writes a run's lines to a file, each at once. A context that closes the file.

    The header creates it; a file with content is refused and kept. Raises OptionError for that, and
    for a file that cannot be written, now or later (a full disk).
    """

    def __init__(self, path: Path, *, option: str = "--results") -> None:
        self._path = path
        self._option = option
        self._file: BinaryIO | None = None
        self._check()
        self._encode = msgspec.json.Encoder(enc_hook=_plain).encode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def header(self, header: RunHeader) -> None:
        """Write the facts known before the first request."""
        self._check()  # preparing took a while
        try:
            # Unbuffered: a line is whole, or was killed.
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        self._line(_FirstLine(format=FORMAT, run=header))

    def result(self, result: Result) -> None:
        """Write one result."""
        self._line(result)

    def skipped(self, reading: ServerReading) -> None:
        """Write the reading at the end of the skipped part."""
        self._line(_SkippedLine(skipped=reading))

    def end(self, end: RunEnd) -> None:
        """Write the facts known after the last reply."""
        self._line(_EndLine(end=end))

    def _check(self) -> None:
        """Try the file, and leave it unchanged."""
        try:
            there = self._path.exists()
            if there and self._path.is_file() and self._path.stat().st_size:
                expected = "a file that is not there yet, or empty: this one would be lost"
                raise OptionError(self._option, self._path, expected)
            if not self._path.is_fifo():  # its reader would take it for the end
                self._path.open("ab").close()
            if not there:
                self._path.unlink()
        except OSError as error:
            raise self._refused(error) from error

    def _line(self, value: object) -> None:
        assert self._file is not None  # the header comes first
        left = memoryview(self._encode(value) + b"\n")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OptionError:
        expected = f"a file that can be written ({error.strerror})"
        return OptionError(self._option, self._path, expected)


def read_results(path: Path) -> RunRecord:
    """Read a run back; a cut last line is dropped, and the record is `cut`.

    Raises FileError, with file, line and reason, for a file that cannot be read, another format, an
    unknown line, a second header, or anything after the end.
    """
    return _Reader(path).record()


class _Reader:
    """Turns the lines of one file into a record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: RunHeader | None = None
        self._results: list[Result] = []
        self._skipped: ServerReading | None = None
        self._end: RunEnd | None = None
        self._cut = False
        self._result_of = msgspec.json.Decoder(Result, dec_hook=_array).decode
        self._format_of = msgspec.json.Decoder(_Format).decode
        self._first_of = msgspec.json.Decoder(_FirstLine).decode
        self._skipped_of = msgspec.json.Decoder(_SkippedLine).decode
        self._end_of = msgspec.json.Decoder(_EndLine).decode

    def record(self) -> RunRecord:
        try:
            with self._path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    self._line(number, line)
        except OSError as error:
            raise self._refused(None, f"cannot be read ({error.strerror})") from error
        if self._header is None:
            raise self._refused(None, "is empty")
        return RunRecord(
            header=self._header,
            results=steady_results(
                self._results,
                () if self._end is None else self._end.epochs,
                self._header.start.dilation,
            ),
            end=self._end,
            skipped=self._skipped,
            cut=self._cut,
        )

    def _line(self, number: int, line: bytes) -> None:
        if self._end is not None:
            raise self._refused(number, "stands after the end of the run")
        try:
            self._take(number, line)
        except msgspec.ValidationError as error:
            raise self._refused(number, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number > 1 and not line.endswith(b"\n"):
                self._cut = True
                return
            raise self._refused(number, f"is not JSON: {error}") from error

    def _take(self, number: int, line: bytes) -> None:
        mark = _MARK.match(line)
        kind = mark[1] if mark else b""
        if number == 1:
            if kind != b"format":
                raise self._refused(number, f"does not begin a results file of {FORMAT}")
            if (other := self._format_of(line).format) != FORMAT:
                raise self._refused(number, f"is of format {other}, not {FORMAT}")
            self._header = self._first_of(line).run
        elif kind == b"format":
            raise self._refused(number, "begins a second run: a results file holds one")
        elif kind == b"skipped":
            self._skipped = self._skipped_of(line).skipped
        elif kind == b"end":
            self._end = self._end_of(line).end
        else:
            self._results.append(self._result_of(line))

    def _refused(self, line: int | None, reason: str) -> FileError:
        return FileError(self._path, reason, line=line)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no form in a results file")


def _array(kind: type, value: object) -> Int64s:  # noqa: ARG001 - a Result has no other such field
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("chunk_ns is a list of whole numbers")
    return np.array(value, dtype=np.int64)
