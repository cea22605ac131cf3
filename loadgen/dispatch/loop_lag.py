"""Lag of this process's event loop, and its CPU use: whether its times can be trusted.

A probe fires every `PROBE_NS`, by the same timer as sends. Each probe missed in a long stall counts
with its own lateness, or the stall would count as a short one (coordinated omission).
"""

import time
from array import array
from collections.abc import Callable
from typing import Final, Self

import numpy as np

from loadgen.dispatch.timetable import Action, DispatchTimer, LoopTimer
from loadgen.records.run_record import LoopLag

# 100 a second cost less than 1 % of a core, and find a stop of 10 ms wherever it lies.
PROBE_NS: Final = 10_000_000
NS_PER_MS: Final = 1e6


class LoopLagMeter:
    """Measures the running event loop while its context is entered."""

    def __init__(
        self,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[], int] = time.process_time_ns,
        timer: Callable[[Action], DispatchTimer] = LoopTimer,
    ) -> None:
        self._now_ns = now_ns
        self._cpu_ns = cpu_ns
        self._make_timer = timer
        self._lag_ns = array("q")
        self._reported = 0
        self._due_ns = 0
        self._began_ns = self._began_cpu_ns = 0
        self._wall_ns = self._used_cpu_ns = 0

    def __enter__(self) -> Self:
        self._timer = self._make_timer(self._probe)
        self._began_ns, self._began_cpu_ns = self._now_ns(), self._cpu_ns()
        self._next(self._began_ns)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.close()
        self._wall_ns = self._now_ns() - self._began_ns
        self._used_cpu_ns = self._cpu_ns() - self._began_cpu_ns

    def lately_ms(self) -> float:
        """The greatest lag since the last call; 0 without a probe."""
        recent = self._lag_ns[self._reported :]
        self._reported = len(self._lag_ns)
        return max(recent, default=0) / NS_PER_MS

    def found(self, worker: int) -> LoopLag:
        """The whole measurement, after the context; zeros without a probe."""
        lag_ms = np.frombuffer(self._lag_ns, dtype=np.int64) / NS_PER_MS if self._lag_ns else [0.0]
        p50_ms, p99_ms = np.percentile(lag_ms, [50.0, 99.0])
        return LoopLag(
            worker=worker,
            p50_ms=float(p50_ms),
            p99_ms=float(p99_ms),
            max_ms=float(np.max(lag_ms)),
            cpu_share=self._used_cpu_ns / max(1, self._wall_ns),
            probes=len(self._lag_ns),
        )

    def _next(self, now_ns: int) -> None:
        self._due_ns = now_ns + PROBE_NS
        self._timer.set(self._due_ns)

    def _probe(self) -> None:
        now_ns = self._now_ns()
        if now_ns < self._due_ns:  # an timer may ring early
            self._timer.set(self._due_ns)
            return
        late_ns = now_ns - self._due_ns
        while late_ns >= 0:
            self._lag_ns.append(late_ns)
            late_ns -= PROBE_NS
        self._next(now_ns)
