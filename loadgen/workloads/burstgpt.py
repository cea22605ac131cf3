"""The BurstGPT trace (HPMLL/BurstGPT; Wang et al., arXiv 2401.17644, CC-BY-4.0).

A CSV of Timestamp in seconds, Model, Request tokens, Response tokens, Total tokens, Log Type; its
second release has Session ID and Elapsed time after the timestamp. A row of 0 tokens is a request
that failed when recorded (the data set's description): left out, and counted. Sessions are not
joined: the trace does not say whether request tokens include earlier turns.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from loadgen.records.plain_number import counted
from loadgen.workloads.recording import Recording
from loadgen.workloads.trace_lines import (
    TraceRow,
    csv_fields,
    read_csv,
    read_rows,
    read_seconds_ns,
    read_tokens,
)

HEADERS: Final = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
)


def read_burstgpt(path: Path) -> Recording:
    """Read every row in order; raises FileError for the first that is wrong."""
    header, lines = read_csv(path, *HEADERS)
    columns = header.split(",")
    request, response = columns.index("Request tokens"), columns.index("Response tokens")
    failed = 0

    def read(line: str) -> TraceRow | None:
        nonlocal failed
        fields = csv_fields(line, len(columns))
        at_ns = read_seconds_ns("Timestamp", fields[0])
        input_tokens = read_tokens("Request tokens", fields[request], least=0)
        output_tokens = read_tokens("Response tokens", fields[response], least=0)
        if not input_tokens or not output_tokens:
            failed += 1
            return None
        return TraceRow(at_ns, input_tokens, output_tokens)

    rows = read_rows(path, lines, first_line=2, read=read)
    recording = Recording.of_rows("burstgpt", rows)
    if not failed:
        return recording
    left_out = counted(failed, "row")
    note = f"of {path.name} {left_out} without a length, which failed when recorded, left out"
    return replace(recording, notes=(note,))
