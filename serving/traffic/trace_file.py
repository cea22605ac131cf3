"""Reads recorded traffic from a file, in two formats that are told apart by its first character.
The file may be compressed by gzip.

- Azure LLM inference trace of 2023 (AzurePublicDataset; Patel et al., Splitwise, ISCA 2024): CSV of
  TIMESTAMP,ContextTokens,GeneratedTokens, timestamps with up to nine fractional digits.
- Mooncake (kvcache-ai/Mooncake; Qin et al., FAST 2025): JSON lines of timestamp in milliseconds,
  input_length, output_length and hash_ids, which name the blocks that prompts share. Traffic knows
  lengths alone, so hash_ids are looked at and left out: every prompt is one of its own.

A row of another form stops the reading: a trace with holes would be another workload.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

from emulator.errors import UltraServeError
from emulator.units import NS_PER_S
from serving.traffic.lengths import TOKENS_MAX
from serving.traffic.recorded_file import read_recorded
from serving.traffic.traffic import Traffic

AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
_MOONCAKE_FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
_NS_PER_MS: Final = 1_000_000
_TIMESTAMP_MS_MAX: Final = 10**13  # three centuries: a slip of a unit, not a time in a trace

_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)  # naive, as the trace's own timestamps are: only differences count

_Row = tuple[int, int, int]  # ns, prompt tokens, output tokens


class MalformedTrace(UltraServeError):
    """A trace cannot be read: the message is one line with file, line, field and reason."""

    def __init__(self, *, path: Path, line: int | None, field: str | None, reason: str) -> None:
        where = f"{path}:{line}" if line is not None else str(path)
        what = f"{field} {reason}" if field else reason
        super().__init__(f"{where}: {what}".replace("\n", " "))
        self.path = path
        self.line = line
        self.field = field
        self.reason = reason


class _BadField(Exception):
    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


def read_trace(path: Path) -> Traffic:
    """Read every row; the first one arrives at 0. Raises MalformedTrace for the first wrong one."""

    def refuse(line: int | None, reason: str) -> MalformedTrace:
        return MalformedTrace(path=path, line=line, field=None, reason=reason)

    try:
        text = read_recorded(path)
    except UnicodeDecodeError as error:
        raise refuse(None, "is not UTF-8 text") from error
    except OSError as error:
        raise refuse(None, error.strerror or str(error)) from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]  # numbered as an editor does
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise refuse(None, "is empty")
    if lines[0].startswith("{"):
        rows = list(_rows(path, lines, first_line=1, read=_mooncake_row))
    elif lines[0] == AZURE_HEADER:
        rows = list(_rows(path, lines[1:], first_line=2, read=_azure_row))
    else:
        found = lines[0].strip()[:80]
        raise refuse(1, f"expected the header {AZURE_HEADER} or a JSON object, found {found!r}")
    if not rows:
        raise refuse(None, "has a header and no row")
    # Differences of whole ns first: seconds since 1970 have no digits left for them in a float.
    at_ns, prompt_tokens, output_tokens = np.array(rows, dtype=np.int64).T
    return Traffic(
        arrival_s=(at_ns - at_ns[0]) / NS_PER_S,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def _rows(
    path: Path, lines: list[str], *, first_line: int, read: Callable[[str], _Row]
) -> Iterator[_Row]:
    previous_ns: int | None = None
    for number, line in enumerate(lines, start=first_line):
        try:
            row = read(line)
            if previous_ns is not None and row[0] < previous_ns:
                raise _BadField("timestamp", "is before that of the row above")
        except _BadField as bad:
            raise MalformedTrace(
                path=path, line=number, field=bad.field, reason=bad.reason
            ) from bad
        previous_ns = row[0]
        yield row


def _azure_row(line: str) -> _Row:
    fields = line.split(",")
    if len(fields) != 3:
        found = len(fields) if line else "an empty line"
        raise _BadField(None, f"expected 3 fields, found {found}")
    timestamp, context, generated = fields
    return (
        _azure_ns(timestamp),
        _azure_tokens("ContextTokens", context),
        _azure_tokens("GeneratedTokens", generated),
    )


def _azure_ns(text: str) -> int:
    matched = _TIMESTAMP.fullmatch(text)
    if matched is None:
        raise _BadField("TIMESTAMP", f"{text[:40]!r} is not like 2023-11-16 18:15:46.6805900")
    try:
        whole_s = (datetime.fromisoformat(matched[1]) - _EPOCH) // timedelta(seconds=1)
    except ValueError as error:
        raise _BadField("TIMESTAMP", f"{text!r} is not a time that exists") from error
    return whole_s * NS_PER_S + int((matched[2] or "0").ljust(9, "0"))


def _azure_tokens(column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _BadField(column, f"{text[:40]!r} is not a whole number")
    if len(text) > len(str(TOKENS_MAX)) or not 1 <= int(text) <= TOKENS_MAX:
        raise _BadField(column, f"{text[:40]} is not in 1 to {TOKENS_MAX:,}")
    return int(text)


def _mooncake_row(line: str) -> _Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _BadField(None, "is not a JSON object") from error
    if not isinstance(row, dict):
        raise _BadField(None, "is not a JSON object")
    strange = sorted(set(row) - set(_MOONCAKE_FIELDS))
    if strange:
        raise _BadField(
            repr(strange[0][:40]), f"is not one of the fields {', '.join(_MOONCAKE_FIELDS)}"
        )
    hash_ids = row.get("hash_ids", [])
    if not isinstance(hash_ids, list) or any(type(name) is not int for name in hash_ids):
        raise _BadField("hash_ids", "is not a list of whole numbers")
    return (
        _whole(row, "timestamp", least=0, most=_TIMESTAMP_MS_MAX) * _NS_PER_MS,
        _whole(row, "input_length", least=1, most=TOKENS_MAX),
        _whole(row, "output_length", least=1, most=TOKENS_MAX),
    )


def _whole(row: Mapping[str, object], field: str, *, least: int, most: int) -> int:
    if field not in row:
        raise _BadField(field, "is missing")
    value = row[field]
    if type(value) is not int:
        raise _BadField(field, f"{str(value)[:40]!r} is not a whole number")
    if not least <= value <= most:
        raise _BadField(field, f"{str(value)[:40]} is not in {least} to {most:,}")
    return value
