"""Every request as a row of CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from math import isnan
from operator import attrgetter
from typing import Final

import numpy as np

from loadgen.measures.columns import Columns
from loadgen.measures.samples import OF_THE_CLIENT, values_ms
from loadgen.records.arrays import Float64s
from loadgen.records.result import Result
from loadgen.records.run_record import RunRecord
from reporting.data_forms import text_cell

COLUMNS: Final = (
    *("class", "request_id", "session_id", "turn", "worker"),
    *("due_s", "sent_s", "ended_s", "queueing_ms", "ttft_ms", "ttft_from_send_ms"),
    *("tpot_ms", "e2e_ms", "chunks", "asked_input_tokens", "input_tokens", "cached_tokens"),
    *("asked_output_tokens", "output_tokens", "resent", "error", "message"),
)
_OF_REPLIES: Final = ("ttft_ms", "ttft_from_send_ms", "tpot_ms", "e2e_ms")


def request_lines(record: RunRecord) -> Iterator[str]:
    """Yield the header and a line per request, in the order of due times.

    Times are seconds since the run's start, latencies ms, of the run's time (emulated if the server
    keeps it); latencies are `measures.samples`', those of broken-off replies included. Unknown
    values are empty, and so is what a simulated run has no client for.
    """
    yield _line(COLUMNS)
    if not record.results:
        return
    dilation = record.header.dilation
    columns = Columns.of(record.results)
    results = sorted(record.results, key=attrgetter("intended_ns"))  # the order of `columns`
    ns_per_s = 1e9 * dilation
    latencies = {
        "queueing_ms": values_ms(columns, "queueing_ms", dilation),
        **{name: _known(columns, name, dilation) for name in _OF_REPLIES},
    }
    if record.header.simulated:
        latencies |= {name: np.full(len(columns), np.nan) for name in OF_THE_CLIENT}
    rows = zip(
        results,
        *(at_ns / ns_per_s for at_ns in (columns.intended_ns, columns.sent_ns, columns.ended_ns)),
        *(latencies[name] for name in ("queueing_ms", *_OF_REPLIES)),
        strict=True,
    )
    for result, *values in rows:
        numbers = ("" if isnan(value) else float(value) for value in values)
        yield _line((*_place(result), *numbers, *_counts(result)))


def _known(columns: Columns, name: str, dilation: float) -> Float64s:
    """A latency of each request, [requests]; NaN where it has none."""
    has = columns.spread if name == "tpot_ms" else columns.chunks > 0
    found = np.full(len(columns), np.nan)
    found[has] = values_ms(columns.where(has), name, dilation)
    return found


def _place(result: Result) -> Sequence[object]:
    return result.traffic_class, result.request_id, result.session_id, result.turn, result.worker


def _counts(result: Result) -> Sequence[object]:
    return (
        *(result.chunk_ns.size, result.asked_input_tokens, result.input_tokens),
        *(result.cached_tokens, result.asked_output_tokens, result.output_tokens, result.resent),
        *(result.error, result.message),
    )


def _line(cells: Sequence[object]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerow(
        [text_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    )
    return file.getvalue()
