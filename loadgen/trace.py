"""Recorded traffic: when requests arrived, and how long their prompts and replies were.

Reads the format of the Azure LLM inference trace of 2023 (AzurePublicDataset; Patel et al.,
Splitwise, ISCA 2024): a CSV of TIMESTAMP, ContextTokens, GeneratedTokens, whose timestamps have
seven fractional digits, that is ticks of 100 ns. A row that is not of that form stops the reading:
a trace with holes would be another workload. This module must not know how rows become requests.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from loadgen.errors import TraceError

HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
TOKENS_MAX: Final = 10_000_000  # longer than any context that exists: a slip of a column, not a row

_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)  # naive, as the trace's own timestamps are: only differences count


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request: arrival since the trace's first row, prompt and reply lengths.

    Raises ValueError for a negative arrival or a length outside 1 to `TOKENS_MAX`.
    """

    arrival_ns: int
    input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.arrival_ns < 0:
            raise ValueError(f"arrival_ns is {self.arrival_ns}, before the first row")
        for name, tokens in (("input", self.input_tokens), ("output", self.output_tokens)):
            if not 1 <= tokens <= TOKENS_MAX:
                raise ValueError(f"{name}_tokens is {tokens}, not in 1 to {TOKENS_MAX:,}")


def read_azure2023(path: Path) -> tuple[TraceRow, ...]:
    """Read every row of the file, in its order; raises TraceError for the first that is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(path=path, line=None, reason="is not UTF-8 text") from error
    except OSError as error:
        raise TraceError(path=path, line=None, reason=error.strerror or str(error)) from error
    lines = text.split("\n")  # not splitlines: line numbers are those that an editor shows
    if lines[-1] == "":
        lines.pop()
    if not lines or lines[0].rstrip("\r") != HEADER:
        found = lines[0].strip()[:80] if lines else ""
        raise TraceError(path=path, line=1, reason=f"expected the header {HEADER}, found {found!r}")
    rows = tuple(_rows(path, lines[1:]))
    if not rows:
        raise TraceError(path=path, line=None, reason="has a header and no row")
    return rows


def _rows(path: Path, lines: list[str]) -> Iterator[TraceRow]:
    first_ns = previous_ns = None
    for number, line in enumerate(lines, start=2):
        try:
            at_ns, input_tokens, output_tokens = _fields(line.rstrip("\r"))
            if previous_ns is not None and at_ns < previous_ns:
                raise ValueError("its timestamp is before that of the row above")
        except ValueError as error:
            raise TraceError(path=path, line=number, reason=str(error)) from error
        first_ns = at_ns if first_ns is None else first_ns
        previous_ns = at_ns
        yield TraceRow(
            arrival_ns=at_ns - first_ns, input_tokens=input_tokens, output_tokens=output_tokens
        )


def _fields(line: str) -> tuple[int, int, int]:
    """Return timestamp in ns, context tokens, generated tokens; raises ValueError with a reason."""
    fields = line.split(",")
    if len(fields) != 3:
        raise ValueError(f"expected 3 fields, found {len(fields) if line else 'an empty line'}")
    timestamp, context, generated = fields
    return (
        _timestamp_ns(timestamp),
        _tokens("ContextTokens", context),
        _tokens("GeneratedTokens", generated),
    )


def _timestamp_ns(text: str) -> int:
    matched = _TIMESTAMP.fullmatch(text)
    if matched is None:
        raise ValueError(f"TIMESTAMP {text[:40]!r} is not like 2023-11-16 18:15:46.6805900")
    try:
        whole_s = (datetime.fromisoformat(matched[1]) - _EPOCH) // timedelta(seconds=1)
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {text!r} is not a time that exists") from error
    # datetime keeps microseconds; the seventh digit is read here
    return whole_s * 1_000_000_000 + int((matched[2] or "0").ljust(9, "0"))


def _tokens(column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{column} {text[:40]!r} is not a whole number")
    if len(text) > len(str(TOKENS_MAX)) or not 1 <= int(text) <= TOKENS_MAX:
        raise ValueError(f"{column} {text[:40]} is not in 1 to {TOKENS_MAX:,}")
    return int(text)
