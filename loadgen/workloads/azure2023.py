"""The Azure LLM inference traces of 2023 and 2024 (AzurePublicDataset; Patel et al., Splitwise,
ISCA 2024; Stojkovic et al., DynamoLLM, HPCA 2025).

A CSV of TIMESTAMP,ContextTokens,GeneratedTokens, with timestamps in ticks of 100 ns (seven
fractional digits; of 2024 in microseconds, and with their zone, UTC). Without shared prefixes:
every prompt is one of its own.
"""

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from loadgen.workloads.recording import NS_PER_S, Recording
from loadgen.workloads.trace_lines import TraceRow, csv_fields, read_csv, read_rows, read_tokens

HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"

_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:\+00:00)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1)  # naive, as the trace's own timestamps are: only differences count


def read_azure2023(path: Path) -> Recording:
    """Read every row in order; raises FileError for the first that is wrong."""
    _, lines = read_csv(path, HEADER)
    return Recording.of_rows("azure2023", read_rows(path, lines, first_line=2, read=_row))


def _row(line: str) -> TraceRow:
    timestamp, context, generated = csv_fields(line, 3)
    return TraceRow(
        at_ns=_timestamp_ns(timestamp),
        input_tokens=read_tokens("ContextTokens", context),
        output_tokens=read_tokens("GeneratedTokens", generated),
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
    return whole_s * NS_PER_S + int((matched[2] or "0").ljust(9, "0"))
