"""Seeded runs for the reports' tests."""

from dataclasses import replace

import numpy as np

from loadgen.records.result import Result
from loadgen.records.run_record import (
    AskedArrivals,
    ClassHeader,
    LoopLag,
    RunEnd,
    RunHeader,
    RunRecord,
    SendSummary,
)
from loadgen.records.server_reading import ServerReading

MS = 1_000_000
INFO = {
    "system": "trn3-gen2",
    "time_model": "qwen3-30b-a3b",
    "weights": "small-moe",
    "routing": "uniform",
    "clock": "dilated:2",
}
EMULATED = ServerReading(
    dilation=2.0,
    emulated_s=0.0,
    lag_s=0.0,
    chip_joules=0.0,
    facility_joules=0.0,
    chips=4.0,
    provisioned_watts=2_000.0,
    info=INFO,
)
FOREIGN = ServerReading(problem="status 404")


def class_header(
    name: str = "chat", *, slo: str = "", concurrency: int | None = None
) -> ClassHeader:
    """A class of 20 sessions a second, or a closed loop."""
    opened = AskedArrivals(
        words="Poisson, 20 sessions per emulated s",
        time="emulated",
        rate_per_s=20.0,
        gap_cv=1.01,
        dispersion=0.97,
        asked_rate_per_s=19.5,
        asked_gap_cv=1.0,
    )
    closed = AskedArrivals(
        words=f"closed loop, {concurrency} at once", time="emulated", concurrency=concurrency
    )
    return ClassHeader(
        name=name,
        api="completions",
        workload="input lognormal:512,128, output uniform:8-64",
        prompts="token ids, of exact length by the server's tokenizer",
        arrivals=opened if concurrency is None else closed,
        sessions=400,
        requests=400,
        slo=slo,
    )


def made_run(
    *,
    names: tuple[str, ...] = ("chat",),
    requests: int = 400,
    seed: int = 0,
    start: ServerReading = EMULATED,
    slowdown: float = 1.0,
    stall_s: float = 0.0,
    failing: float = 0.01,
    slo: str = "",
) -> RunRecord:
    """A run of `requests` a class, over 20 s of its time, with a client stall at 8 s."""
    chance = np.random.default_rng(seed)
    wall_per_s = start.dilation or 1.0
    results: list[Result] = []
    for name in names:
        due_s = np.sort(chance.uniform(0.0, 20.0, requests))
        for number, at_s in enumerate(due_s):
            results.append(
                _result(chance, name, number, at_s, wall_per_s, slowdown, stall_s, failing)
            )
    results.sort(key=lambda result: result.ended_ns)
    wall_s = max(result.ended_ns for result in results) / 1e9
    end = replace(
        start,
        emulated_s=None if start.dilation is None else wall_s / start.dilation,
        lag_s=None if start.dilation is None else 0.004,
        chip_joules=None if start.dilation is None else 700.0 * wall_s / start.dilation,
        facility_joules=None if start.dilation is None else 1_000.0 * wall_s / start.dilation,
    )
    lag = LoopLag(worker=0, p50_ms=0.05, p99_ms=0.61, max_ms=2.2, cpu_share=0.34)
    summary = SendSummary(held_back=0, unsent=0, interrupted=False)
    return RunRecord(
        header=RunHeader(
            command="ultraserve-loadgen run --url http://127.0.0.1:8000 --requests 400 --rate 20",
            url="http://127.0.0.1:8000",
            model="qwen3-30b-a3b",
            seed=seed,
            workers=1,
            started_at="2026-01-02T03:04:05+00:00",
            classes=tuple(class_header(name, slo=slo) for name in names),
            start=start,
        ),
        results=results,
        end=RunEnd(end=end, wall_s=wall_s, sending=dict.fromkeys(names, summary), lags=(lag,)),
    )


def simulated_run() -> RunRecord:
    """As `ultraserve simulate` writes it: sent when due, dilation 1, no client, no host."""
    info = {**INFO, "clock": "virtual", "calibration": "fitted"}
    start = replace(EMULATED, dilation=1.0, info=info)
    made = made_run(failing=0.0, slo="ttft=300ms,tpot=20ms@p99", start=start)
    header, end = made.header, made.end
    assert end is not None
    (only,) = header.classes
    return replace(
        made,
        header=replace(
            header,
            command="ultraserve simulate --model qwen3-30b-a3b --requests 400 --rate 20",
            url="",
            workers=0,
            start=replace(start, lag_s=None),
            classes=(replace(only, api=None, prompts=""),),
            simulated=True,
        ),
        results=[
            replace(each, sent_ns=each.intended_ns, ended_ns=int(each.chunk_ns[-1]))
            for each in made.results
        ],
        end=replace(end, end=replace(end.end, lag_s=None), wall_s=1.5, lags=()),
    )


def _result(
    chance: np.random.Generator,
    name: str,
    number: int,
    due_s: float,
    wall_per_s: float,
    slowdown: float,
    stall_s: float,
    failing: float,
) -> Result:
    sent_s = max(due_s, 8.0 + stall_s) if 8.0 <= due_s < 8.0 + stall_s else due_s
    tokens = int(chance.integers(8, 65))
    ttft_s = slowdown * float(chance.lognormal(np.log(0.12), 0.4))
    gaps_s = slowdown * chance.lognormal(np.log(0.015), 0.3, tokens - 1)
    chunk_s = sent_s + ttft_s + np.concatenate([[0.0], np.cumsum(gaps_s)])
    chunk_ns = (chunk_s * wall_per_s * 1e9).astype(np.int64)
    failed = chance.random() < failing
    return Result(
        request_id=number,
        traffic_class=name,
        session_id=number,
        turn=0,
        worker=0,
        intended_ns=int(due_s * wall_per_s * 1e9),
        sent_ns=int(sent_s * wall_per_s * 1e9),
        ended_ns=int(chunk_ns[-1]) + MS,
        chunk_ns=chunk_ns[:0] if failed else chunk_ns,
        asked_input_tokens=512,
        asked_output_tokens=tokens,
        input_tokens=512,
        output_tokens=0 if failed else tokens,
        error="status 503" if failed else None,
        message="no room [bold]" if failed else "",
    )
