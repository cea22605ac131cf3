"""Actions by due time, with one timer for the earliest.

Timers are the event loop's, at times of the monotonic clock. Loops count in whole ms: at random
times uvloop's is late by 0.3 to 0.5 ms at the median, asyncio's by 0.6 ms, within the required 1
ms. A kernel timer (timerfd, from Python 3.13) is late by 0.1 ms. `python -m
tests.benchmarks.timers` measures the loops; each run reports its own lag (`loop_lag`).
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from loadgen.dispatch.pace import Pace

Action = Callable[[], None]


class DispatchTimer(Protocol):
    """Fires once at a time of the monotonic clock; may fire early, and is then set again."""

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns`, replacing the last time; at once if that has passed."""
        ...

    def close(self) -> None:
        """Do not fire again."""
        ...


class Timetable:
    """Runs each action at its time, in order of adding at equal times.

    An action's exception goes to `on_fault`; the others still run.
    """

    def __init__(
        self,
        *,
        now_ns: Callable[[], int],
        make_timer: Callable[[Action], DispatchTimer],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._now_ns = now_ns
        self._on_fault = on_fault
        self._timer = make_timer(self._ring)
        self._numbers = count()
        self._due: list[tuple[int, int, Action]] = []
        self._set_ns: int | None = None

    def __len__(self) -> int:
        return len(self._due)

    def at(self, due_ns: int, action: Action) -> None:
        """Run `action` at `due_ns`; never within this call, even if that has passed."""
        heapq.heappush(self._due, (due_ns, next(self._numbers), action))
        if self._set_ns is None or due_ns < self._set_ns:
            self._set(due_ns)

    def rearm(self) -> None:
        """Set the timer anew after a change of its clock."""
        if self._due:
            self._set(self._due[0][0])

    def close(self) -> None:
        """Drop all actions, for good."""
        self._due.clear()
        self._timer.close()

    def _set(self, at_ns: int) -> None:
        self._set_ns = at_ns
        self._timer.set(at_ns)

    def _ring(self) -> None:
        self._set_ns = -1  # what is added meanwhile needs no timer: one is set below
        now_ns = self._now_ns()
        batch = []
        while self._due and self._due[0][0] <= now_ns:
            batch.append(heapq.heappop(self._due)[2])
        for action in batch:
            try:
                action()
            except Exception as fault:  # noqa: BLE001 - handed on, whatever it is
                self._on_fault(fault)
        self._set_ns = None
        if self._due:
            self._set(self._due[0][0])


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
