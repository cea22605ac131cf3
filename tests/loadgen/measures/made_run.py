"""Runs made by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadgen.records.result import Result
from loadgen.records.run_record import (
    AskedArrivals,
    ClassHeader,
    RunEnd,
    RunHeader,
    RunRecord,
    SendSummary,
)
from loadgen.records.server_reading import ServerReading

MS = 1_000_000
EVEN = AskedArrivals(words="even", time="wall")
NOTHING = ServerReading()
EMULATED_START = ServerReading(
    dilation=2.0,
    emulated_s=10.0,
    lag_s=0.0,
    chip_joules=0.0,
    facility_joules=100.0,
    provisioned_watts=2000.0,
    chips=4.0,
    queue_s=1.0,
    queued_requests=10.0,
    prefix_queries=100.0,
    prefix_hits=0.0,
)
EMULATED_END = replace(
    EMULATED_START,
    emulated_s=10.2,
    chip_joules=120.0,
    facility_joules=300.0,
    queue_s=1.5,
    queued_requests=20.0,
    prefix_queries=200.0,
    prefix_hits=25.0,
)


def result(
    intended_ms: float,
    sent_ms: float,
    *chunk_ms: float,
    tokens: int | None = None,
    asked: int | None = None,
    error: str | None = None,
    traffic_class: str = "default",
    turn: int = 0,
    message: str = "",
) -> Result:
    """A result in wall ms, with a token per chunk unless given (-1: not counted)."""
    counted = len(chunk_ms) if tokens is None else tokens
    wanted = max(1, counted) if asked is None else asked
    return Result(
        request_id=0,
        traffic_class=traffic_class,
        session_id=0,
        turn=turn,
        worker=0,
        intended_ns=int(intended_ms * MS),
        sent_ns=int(sent_ms * MS),
        ended_ns=int(max(sent_ms, *chunk_ms, 0) * MS),
        chunk_ns=np.array([int(at_ms * MS) for at_ms in chunk_ms], dtype=np.int64),
        asked_input_tokens=10,
        asked_output_tokens=wanted,
        input_tokens=10,
        output_tokens=None if tokens == -1 else counted,
        error=error,
        message=message,
    )


def made_run(  # noqa: PLR0913  # a run has many parts, and a test changes one
    results: Sequence[Result],
    *,
    slo: str = "",
    classes: Sequence[str] = ("default",),
    start: ServerReading = NOTHING,
    end: ServerReading = NOTHING,
    seed: int = 0,
    skip_s: float = 0.0,
    skipped: ServerReading | None = None,
    arrivals: AskedArrivals = EVEN,
) -> RunRecord:
    """A run that ended normally, of a server without a clock unless `start` has one."""
    header = RunHeader(
        command="ultraserve-loadgen run",
        url="http://host:1",
        model="m",
        seed=seed,
        workers=1,
        started_at="2026-01-01T00:00:00Z",
        classes=tuple(
            ClassHeader(
                name=name,
                api="completions",
                workload="made",
                prompts="ids",
                arrivals=arrivals,
                sessions=len(results),
                requests=len(results),
                slo=slo,
            )
            for name in classes
        ),
        start=start,
        skip_s=skip_s,
    )
    sending = {name: SendSummary(held_back=0, unsent=0, interrupted=False) for name in classes}
    return RunRecord(
        header=header,
        results=results,
        end=RunEnd(end=end, wall_s=1.0, sending=sending),
        skipped=skipped,
    )


def served(
    seed: int,
    *,
    requests: int = 400,
    slower: float = 1.0,
    run_seed: int = 0,
    slo: str = "",
) -> RunRecord:
    """A run of independent requests at 50/s: exponential TTFT of 20 ms, four gaps of about 5 ms."""
    chance = np.random.default_rng(seed)
    due_ms = np.cumsum(chance.exponential(20, requests))
    ttft_ms = 1 + chance.exponential(20 * slower, requests)
    gaps_ms = chance.lognormal(0, 0.3, (requests, 4)) * 5 * slower
    chunks_ms = (due_ms + ttft_ms)[:, None] + np.cumsum(gaps_ms, axis=1) - gaps_ms[:, :1]
    return made_run(
        [
            result(float(due), float(due), *row)
            for due, row in zip(due_ms, chunks_ms.tolist(), strict=True)
        ],
        seed=run_seed,
        slo=slo,
    )
