"""Emulated time. One clock per engine run, passed as an argument; it alone reads the wall.

A dilated clock maps emulated time to the wall by a factor, which changes only on request (see
`emulator.sim.epochs`); a virtual clock jumps. All times are whole nanoseconds.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from emulator.sim.epochs import EpochMap


class Clock(Protocol):
    """Emulated nanoseconds since the clock was made."""

    @property
    def dilation(self) -> float:
        """Current wall seconds per emulated second; 0 when time jumps."""
        ...

    @property
    def epochs(self) -> EpochMap | None:
        """Emulated time as a function of the system's monotonic clock; None when it jumps."""
        ...

    def now_ns(self) -> int:
        """The present."""
        ...

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Wait for `deadline_ns`; returns its lateness on arrival, in emulated ns."""
        ...


class DilatedClock:
    """One emulated second takes `dilation` wall seconds; 1 is real time.

    The program sleeps only here, to pace emulated time. Thread-safe for readers; never falls.
    """

    def __init__(
        self,
        dilation: float,
        *,
        wall_ns: Callable[[], int] = time.monotonic_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wall_ns = wall_ns
        self._sleep_s = sleep_s
        self._changing = threading.Lock()
        self._epochs = EpochMap.at(now_ns=0, wall_ns=wall_ns(), dilation=float(dilation))

    @property
    def dilation(self) -> float:
        """Current wall seconds per emulated second."""
        return self._epochs.last.dilation

    @property
    def epochs(self) -> EpochMap:
        """Emulated time as a function of the wall."""
        return self._epochs

    def change(self, dilation: float) -> None:
        """Set the dilation from now on; raises ConfigError unless it is above 0."""
        with self._changing:
            self._epochs = self._epochs.changed(dilation, wall_ns=self._wall_ns())

    def wall_ns(self) -> int:
        """The reading of the wall clock that emulated time follows."""
        return self._wall_ns()

    def now_ns(self) -> int:
        """The present, in emulated ns."""
        # Wall and map are of one moment: a wall from after a change, read by the map from before
        # it, may be ahead of what the next reading says.
        with self._changing:
            wall_ns = self._wall_ns()
            return self._epochs.emulated_ns(wall_ns)

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Sleep until `deadline_ns`; returns the lag in emulated ns, 0 when there is none."""
        wall_deadline_ns = self._epochs.wall_ns(deadline_ns)
        left_ns = wall_deadline_ns - self._wall_ns()
        if left_ns <= 0:
            return max(0, self.now_ns() - deadline_ns)
        while left_ns > 0:
            self._sleep_s(left_ns / 1e9)
            left_ns = wall_deadline_ns - self._wall_ns()
        return 0


class VirtualClock:
    """Time that moves only by waiting; for drivers without other waits."""

    def __init__(self) -> None:
        self._now_ns = 0

    @property
    def dilation(self) -> float:
        """0: emulated time does not follow the wall."""
        return 0.0

    @property
    def epochs(self) -> None:
        """None: emulated time does not follow the wall."""
        return

    def now_ns(self) -> int:
        """The present, in emulated ns."""
        return self._now_ns

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Jump to `deadline_ns`; never late, never back."""
        self._now_ns = max(self._now_ns, deadline_ns)
        return 0
