"""Lateness and cost of timers: asyncio's loop and uvloop's.

    python -m tests.benchmarks.timers

Each waits for `CALLS` times of a Poisson process.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import uvloop

from loadgen.dispatch.timetable import LoopTimer

CALLS: Final = 1_000
MEAN_GAP_NS: Final = 3_000_000

LOOPS: Final[dict[str, Callable[[], Any]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


async def measure() -> tuple[np.ndarray, float]:
    """Lateness of each call in microseconds, and CPU microseconds per call."""
    late_ns: list[int] = []
    over = asyncio.get_running_loop().create_future()
    gaps_ns = np.random.default_rng(0).exponential(MEAN_GAP_NS, CALLS).astype(int).tolist()
    due_ns = time.monotonic_ns()

    def call() -> None:
        nonlocal due_ns
        now_ns = time.monotonic_ns()
        if now_ns < due_ns:  # early: a timer may, and is set again
            timer.set(due_ns)
            return
        late_ns.append(now_ns - due_ns)
        if len(late_ns) == CALLS:
            over.set_result(None)
            return
        due_ns += gaps_ns[len(late_ns)]
        timer.set(due_ns)

    timer = LoopTimer(call)
    cpu_ns = time.process_time_ns()
    call()
    await over
    cpu_ns = time.process_time_ns() - cpu_ns
    timer.close()
    return np.array(late_ns) / 1e3, cpu_ns / 1e3 / CALLS


def main() -> None:
    print(f"{'loop':8} {'late p50':>9} {'p99':>9} {'us of CPU per call':>19}")
    for name, make_loop in LOOPS.items():
        with asyncio.Runner(loop_factory=make_loop) as runner:
            late_us, cpu_us = runner.run(measure())
        p50_us, p99_us = np.percentile(late_us, [50, 99])
        print(f"{name:8} {p50_us:6.0f} us {p99_us:6.0f} us {cpu_us:19.1f}")


if __name__ == "__main__":
    main()
