"""Timers of the event loop, at times of the monotonic clock.

Loops count in whole ms: at random times uvloop's is late by 0.3 to 0.5 ms at the median, asyncio's
by 0.6 ms, within the required 1 ms. A kernel timer (timerfd, from Python 3.13) is late by 0.1 ms.
`python -m tests.benchmarks.timers` measures the loops; each run reports its own lag (`loop_lag`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from loadgen.dispatch.pace import Pace
from loadgen.dispatch.timetable import Action, DispatchTimer

NS_PER_S: Final = 1_000_000_000


class LoopTimer:
    """The event loop's own timer; it may fire early."""

    def __init__(self, action: Action, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._loop = asyncio.get_running_loop()
        self._action = action
        self._now_ns = now_ns
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        """See `DispatchTimer.set`."""
        self.close()
        delay_s = max(0.0, (at_ns - self._now_ns()) / NS_PER_S)
        self._handle = self._loop.call_later(delay_s, self._action)

    def close(self) -> None:
        """See `DispatchTimer.close`. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class PacedTimer:
    """A timer of the monotonic clock, set by the steady time of a run (see `Pace`)."""

    def __init__(self, timer: DispatchTimer, pace: Pace, origin_ns: int) -> None:
        self._timer = timer
        self._pace = pace
        self._origin_ns = origin_ns

    def set(self, at_ns: int) -> None:
        """See `DispatchTimer.set`; steady ns since the run's start."""
        self._timer.set(self._origin_ns + self._pace.wall_ns(at_ns))

    def close(self) -> None:
        """See `DispatchTimer.close`."""
        self._timer.close()
