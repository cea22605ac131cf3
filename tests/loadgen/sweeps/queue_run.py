"""Runs against queues with known formulas, in virtual time, to check a sweep's decisions.

A request is one token at its service's end; so its TTFT is its time in the system.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.measures.slo import Slo
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
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.workload_spec import WorkloadSpec

Float64s = NDArray[np.float64]
Service = Callable[[np.random.Generator, int], Float64s]


def exponential(mean_s: float) -> Service:
    return lambda chance, count: chance.exponential(mean_s, count)


def fixed(seconds: float) -> Service:
    return lambda _, count: np.full(count, seconds)


@dataclass(frozen=True, kw_only=True)
class QueueRun:
    """`servers` of one queue, first come first served; `fails` is the share refused at once."""

    service: Service
    servers: int = 1
    fails: float = 0.0
    even_arrivals: bool = False
    latency_floor_s: float = 0.0

    async def __call__(self, options: RunOptions, words: str) -> RunRecord:  # noqa: ARG002
        each = options.classes[0]
        count = each.workload.sessions
        assert count is not None
        chance = np.random.default_rng(options.seed)
        service_s = self.service(chance, count)  # [requests]
        if each.arrivals.rate is not None:
            gaps = np.ones(count) if self.even_arrivals else chance.exponential(1.0, count)
            due_s = np.cumsum(gaps) / float(each.arrivals.rate)
            ended_s = self.open_loop(due_s, service_s)
        else:
            assert each.arrivals.concurrency is not None
            due_s, ended_s = self.closed_loop(int(each.arrivals.concurrency), service_s)
        ended_s = ended_s + self.latency_floor_s
        failed = chance.random(count) < self.fails
        return record(options, due_s, ended_s, failed)

    def open_loop(self, due_s: Float64s, service_s: Float64s) -> Float64s:
        free_s = [0.0] * self.servers
        ended = []
        for due, service in zip(due_s, service_s, strict=True):
            end = max(due, heapq.heappop(free_s)) + service
            heapq.heappush(free_s, end)
            ended.append(end)
        return np.array(ended)

    def closed_loop(self, concurrency: int, service_s: Float64s) -> tuple[Float64s, Float64s]:
        free_s = [0.0] * self.servers
        ready_s = [0.0] * concurrency
        due, ended = [], []
        for service in service_s:
            begin = heapq.heappop(ready_s)
            end = max(begin, heapq.heappop(free_s)) + service
            heapq.heappush(free_s, end)
            heapq.heappush(ready_s, end)
            due.append(begin)
            ended.append(end)
        return np.array(due), np.array(ended)


def record(
    options: RunOptions, due_s: Float64s, ended_s: Float64s, failed: NDArray[np.bool_]
) -> RunRecord:
    due_ns = (due_s * 1e9).astype(np.int64)
    ended_ns = np.maximum((ended_s * 1e9).astype(np.int64), due_ns)
    results = [
        Result(
            request_id=index,
            traffic_class=options.classes[0].name,
            session_id=index,
            turn=0,
            worker=0,
            intended_ns=due,
            sent_ns=due,
            ended_ns=due if fails else ended,
            chunk_ns=np.array([] if fails else [ended], dtype=np.int64),
            asked_input_tokens=1,
            asked_output_tokens=1,
            input_tokens=1,
            output_tokens=1,
            error="status 503" if fails else None,
        )
        for index, (due, ended, fails) in enumerate(
            zip(due_ns.tolist(), ended_ns.tolist(), failed.tolist(), strict=True)
        )
    ]
    each = options.classes[0]
    header = RunHeader(
        command="",
        url=options.server.url,
        model="queue",
        seed=options.seed,
        workers=1,
        started_at="2026-01-01T00:00:00Z",
        classes=(
            ClassHeader(
                name=each.name,
                api="completions",
                workload="a token each",
                prompts="none",
                arrivals=AskedArrivals(words="a queue's", time="wall"),
                sessions=len(results),
                requests=len(results),
                slo="" if each.slo is None else each.slo.words,
            ),
        ),
        start=ServerReading(),
        skip_s=options.skip_s,
    )
    sending = {each.name: SendSummary(held_back=0, unsent=0, interrupted=False)}
    end = RunEnd(end=ServerReading(), wall_s=float(ended_s.max()), sending=sending)
    return RunRecord(header=header, results=results, end=end)


def queue_options(
    *, requests: int, slo: str = "", seed: int = 0, skip_s: float = 0.0
) -> RunOptions:
    one = parse_lengths("1", option="--input")
    return RunOptions(
        server=ServerOptions(url="http://queue"),
        classes=(
            ClassOptions(
                workload=WorkloadSpec(input_lengths=one, output_lengths=one, sessions=requests),
                arrivals=ArrivalSpec(),
                slo=Slo.parse(slo) if slo else None,
            ),
        ),
        seed=seed,
        skip_s=skip_s,
    )
