"""Every request in a row of CSV, for whoever wants to look further than a report does."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from loadgen.records.result import Result
from loadgen.records.run_record import RunRecord

COLUMNS: Final = (
    *("class", "request_id", "session_id", "turn", "worker"),
    *("due_s", "sent_s", "ended_s", "queueing_ms", "ttft_ms", "ttft_from_send_ms"),
    *("tpot_ms", "e2e_ms", "chunks", "asked_input_tokens", "input_tokens", "cached_tokens"),
    *("asked_output_tokens", "output_tokens", "error", "message"),
)


def request_lines(record: RunRecord) -> Iterator[str]:
    """Yield the header and a line for each request, in the order in which they ended.

    Times are seconds since the run's start, and latencies milliseconds, of the run's time: emulated
    if the server keeps it. What is not known is empty.
    """
    dilation = record.header.start.dilation or 1.0
    yield _line(COLUMNS)
    for result in record.results:
        yield _line(_row(result, dilation))


def _row(result: Result, dilation: float) -> Sequence[object]:
    def ms(start_ns: int, end_ns: int) -> float:
        return (end_ns - start_ns) / (1e6 * dilation)

    def seconds(at_ns: int) -> float:
        return at_ns / (1e9 * dilation)

    chunk_ns, tokens = result.chunk_ns, result.counted_output_tokens
    first_ns = int(chunk_ns[0]) if chunk_ns.size else None
    last_ns = int(chunk_ns[-1]) if chunk_ns.size else None
    spread = first_ns is not None and last_ns is not None and chunk_ns.size > 1 and tokens > 1
    due_ns, sent_ns = result.intended_ns, result.sent_ns
    return (
        *(result.traffic_class, result.request_id, result.session_id, result.turn, result.worker),
        *(seconds(due_ns), seconds(sent_ns), seconds(result.ended_ns), ms(due_ns, sent_ns)),
        None if first_ns is None else ms(due_ns, first_ns),
        None if first_ns is None else ms(sent_ns, first_ns),
        ms(first_ns, last_ns) / (tokens - 1) if spread else None,  # type: ignore[arg-type]
        None if last_ns is None else ms(due_ns, last_ns),
        *(chunk_ns.size, result.asked_input_tokens, result.input_tokens, result.cached_tokens),
        *(result.asked_output_tokens, result.output_tokens, result.error, result.message),
    )


def _line(cells: Sequence[object]) -> str:
    file = io.StringIO(newline="")
    csv.writer(file).writerow(cells)
    return file.getvalue()
