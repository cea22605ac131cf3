"""The exact day of an UltraServer: every step of 18 replicas that take turns, simulated.

    python -m tests.benchmarks exact_day [--hours N] [--replicas N] [--processes N]

Azure's hourly rates of coding traffic (the busiest day) with the lengths of its conversations, both
in ../shared/traces or where ULTRASERVE_TRACES says, on replicas of 8 chips of gpt-oss-120b: the
question of the guide to recorded days. The highest rate is 70 % of what the replicas serve within
TTFT 1 s and TPOT 30 ms, 85 requests/s each, as `ultraserve day --policy never --peak 70` finds with
these files. Arrivals are Poisson; replica n gets every 18th request from the n-th on, so replicas
have nothing to do with each other and are simulated one after another in each process.

With fewer hours the day is cut at its end: memory is that of the longest-lived process, and grows
with the requests of one replica, whatever its steps and tokens.
"""

import argparse
import logging
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.specs.partition import Partition
from loadgen.measures.percentile import percentile
from loadgen.workloads.traffic import Traffic
from serving.analysis.day.day_trace import DAY_S, HOUR_S
from serving.analysis.day.day_trace_file import day_trace
from serving.simulator import SchedulerLimits, SimulatedDeployment, SimulationWorkers, simulate

SHARED: Final = Path(__file__).resolve().parents[3] / "shared" / "traces"
RATES: Final = "azure2024_digitized/azure2024_code_hourly_est.csv"
LENGTHS: Final = "azure2023/AzureLLMInferenceTrace_conv.csv"
CAPACITY_PER_S, PEAK_SHARE = 85.0, 0.7  # of a replica
TTFT_S, TPOT_S = 1.0, 0.03
DRAWN: Final = 1 << 20  # arrivals at a time
LOOK_S: Final = 60.0
SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of `replicas`, for the first `hours` of the day."""

    number: int
    replicas: int
    hours: float
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaDay:
    """What one replica did."""

    ttft_s: Float64s  # [requests]
    tpot_s: Float64s  # [requests]
    requests: int
    steps: int
    tokens: int
    joules: float
    cpu_s: float
    memory_mb: float


def _traffic(asked: Replica) -> Traffic:
    """Every so manieth of the day's requests: Poisson, at the trace's rate in each minute."""
    trace = day_trace(str(asked.folder / RATES)).scaled(
        PEAK_SHARE * CAPACITY_PER_S * asked.replicas
    )
    times_s = np.arange(0.0, asked.hours * HOUR_S + LOOK_S, LOOK_S)
    rates = trace.rates_at(trace.busiest_day() * DAY_S + times_s[:-1] + LOOK_S / 2)
    expected = np.append(0.0, (rates * LOOK_S).cumsum())  # requests until each time
    chance, came, own = np.random.default_rng([SEED, 0]), 0.0, []
    first = asked.number  # of the next draw
    while came < expected[-1]:
        points = came + chance.standard_exponential(DRAWN).cumsum()
        came = float(points[-1])
        own.append(points[first :: asked.replicas])
        first = (first - DRAWN) % asked.replicas
    arrivals = np.concatenate(own)
    arrival_s = np.interp(arrivals[arrivals < expected[-1]], expected, times_s)
    recorded = Traffic.recorded(asked.folder / LENGTHS).lengths
    lengths = recorded.draw_pairs(np.random.default_rng([SEED, 1, asked.number]), len(arrival_s))
    return Traffic(arrival_s=arrival_s, prompt_tokens=lengths[0], output_tokens=lengths[1])


@cache
def _deployment() -> SimulatedDeployment:
    return SimulatedDeployment.of(
        "trn3-nl72x2",
        "gpt-oss-120b",
        Partition(chips=8, ep=8, lnc=2),
        schedulers=SchedulerLimits(max_num_seqs=1_024, max_num_batched_tokens=8_192),
    )


def simulated(asked: Replica) -> ReplicaDay:
    """Serve one replica's requests."""
    begun_s = time.process_time()
    run = simulate(_deployment(), _traffic(asked), logs=False)
    served = run.served
    return ReplicaDay(
        ttft_s=run.ttft_s,
        tpot_s=run.tpot_s,
        requests=int(served.finished.sum()),
        steps=served.steps,
        tokens=served.tokens,
        joules=served.joules,
        cpu_s=time.process_time() - begun_s,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    )


def run(arguments: Sequence[str] | None = None) -> None:
    """Print what the day comes to, and what it took here."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exact_day")
    parser.add_argument("--hours", type=float, default=24.0, help="of the day, from midnight UTC")
    parser.add_argument("--replicas", type=int, default=18)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    folder = Path(os.environ.get("ULTRASERVE_TRACES", SHARED))
    if not (folder / RATES).exists():
        print(f"{folder / RATES} is not there: there is no day")
        return
    tasks = [
        Replica(number=number, replicas=args.replicas, hours=args.hours, folder=folder)
        for number in range(args.replicas)
    ]
    begun_s = time.perf_counter()
    with SimulationWorkers(args.processes) as workers:
        days = workers.map(simulated, tasks)
    wall_s = time.perf_counter() - begun_s
    ttft_s = np.concatenate([day.ttft_s for day in days])
    tpot_s = np.concatenate([day.tpot_s for day in days])
    kept = ((ttft_s <= TTFT_S) & (tpot_s <= TPOT_S)).mean()
    steps, cpu_s = sum(day.steps for day in days), sum(day.cpu_s for day in days)
    usage = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    all_s = sum(of.ru_utime + of.ru_stime for of in usage)
    print(
        f"{sum(day.requests for day in days):,} requests, "
        f"{sum(day.tokens for day in days):,} output tokens, {steps:,} steps, "
        f"{sum(day.joules for day in days) / 1e6:,.1f} MJ at the chips\n"
        f"TTFT p99 {1e3 * percentile(ttft_s, 99):.1f} ms, TPOT p99 "
        f"{1e3 * percentile(tpot_s, 99):.2f} ms; {kept:.3%} keep TTFT 1 s and TPOT 30 ms\n"
        f"{wall_s:.0f} s on {args.processes} processes, {all_s:.0f} core seconds with starts and "
        f"percentiles, {1e6 * cpu_s / steps:.2f} us a step in them; "
        f"{max(day.memory_mb for day in days):,.0f} MB of a process at most"
    )


if __name__ == "__main__":
    run()
