"""Counts for tests of the live view."""

import numpy as np

from loadgen.live.live_counts import LiveCounts
from loadgen.records.result import Result
from loadgen.records.run_record import AskedArrivals, ClassHeader, RunHeader
from loadgen.records.server_reading import ServerReading

MS = 1_000_000


def class_header(
    name: str = "chat",
    *,
    requests: int | None = 10,
    output_tokens: int | None = 200,
    ends_s: float | None = None,
    time: str = "emulated",
) -> ClassHeader:
    """A class of ten requests of 20 tokens."""
    return ClassHeader(
        name=name,
        api="completions",
        workload="512 in, 20 out",
        prompts="token ids",
        arrivals=AskedArrivals(words="Poisson, 4 sessions per emulated s", time=time),
        sessions=requests,
        requests=requests,
        output_tokens=output_tokens,
        ends_s=ends_s,
    )


def header(*classes: ClassHeader, dilation: float | None = 4.0) -> RunHeader:
    return RunHeader(
        command="ultraserve-loadgen run",
        url="http://127.0.0.1:8000",
        model="m",
        seed=0,
        workers=1,
        started_at="2026-01-02T03:04:05+00:00",
        classes=classes or (class_header(),),
        start=ServerReading(dilation=dilation),
    )


def begun(*classes: ClassHeader, dilation: float | None = 4.0, origin_ns: int = 0) -> LiveCounts:
    counts = LiveCounts()
    counts.begin(header(*classes, dilation=dilation), origin_ns)
    return counts


def result(
    *,
    name: str = "chat",
    first_ms: float = 100,
    gaps_ms: tuple[float, ...] = (),
    tokens: int = 1,
    due_ms: float = 0,
    error: str | None = None,
) -> Result:
    """A reply whose chunks come at those wall times; sent at 0."""
    at_ms = np.cumsum([first_ms, *gaps_ms])
    chunk_ns = (at_ms * MS).astype(np.int64)
    return Result(
        request_id=0,
        traffic_class=name,
        session_id=0,
        turn=0,
        worker=0,
        intended_ns=int(due_ms * MS),
        sent_ns=max(0, int(due_ms * MS)),
        ended_ns=int(chunk_ns[-1]),
        chunk_ns=chunk_ns[:0] if error else chunk_ns,
        asked_input_tokens=512,
        asked_output_tokens=tokens,
        input_tokens=512,
        output_tokens=tokens,
        error=error,
    )
