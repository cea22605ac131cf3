"""Emulated time. One clock per engine run, passed to whoever needs it; nobody else reads the wall.

The seam is three methods: `now_ns`, `wait_until_ns`, `dilation`. A dilated clock maps emulated time
to the wall by a constant factor; a virtual clock jumps. All times are whole nanoseconds.
"""

import time
from collections.abc import Callable
from typing import Protocol

from emulator.errors import ConfigError


class Clock(Protocol):
    """Emulated nanoseconds since the clock was made."""

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second; 0 when time jumps."""
        ...

    def now_ns(self) -> int:
        """The present."""
        ...

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Wait for `deadline_ns`; returns how late the present already was, in emulated ns."""
        ...


class DilatedClock:
    """One emulated second takes `dilation` wall seconds; 1 is real time.

    Waiting here is the one place where the program sleeps: it paces emulated time.
    """

    def __init__(
        self,
        dilation: float,
        *,
        wall_ns: Callable[[], int] = time.monotonic_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0.0 < dilation < float("inf"):
            raise ConfigError(field="dilation", value=dilation, expected="a number above 0")
        self._dilation = float(dilation)
        self._wall_ns = wall_ns
        self._sleep_s = sleep_s
        self._origin_ns = wall_ns()

    @property
    def dilation(self) -> float:
        """Wall seconds per emulated second."""
        return self._dilation

    def now_ns(self) -> int:
        """The present, in emulated ns."""
        return int((self._wall_ns() - self._origin_ns) / self._dilation)

    def at_monotonic_s(self, wall_s: float) -> float:
        """Convert a reading of the system's monotonic clock to emulated seconds."""
        return (wall_s - self._origin_ns / 1e9) / self._dilation

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Sleep until `deadline_ns`; returns the lag in emulated ns, 0 when there is none."""
        wall_deadline_ns = self._origin_ns + int(deadline_ns * self._dilation)
        left_ns = wall_deadline_ns - self._wall_ns()
        if left_ns <= 0:
            return int(-left_ns / self._dilation)
        while left_ns > 0:
            self._sleep_s(left_ns / 1e9)
            left_ns = wall_deadline_ns - self._wall_ns()
        return 0


class VirtualClock:
    """Time that moves only when it is waited for; for closed drivers, where nobody else waits."""

    def __init__(self) -> None:
        self._now_ns = 0

    @property
    def dilation(self) -> float:
        """0: emulated time does not follow the wall."""
        return 0.0

    def now_ns(self) -> int:
        """The present, in emulated ns."""
        return self._now_ns

    def wait_until_ns(self, deadline_ns: int) -> int:
        """Jump to `deadline_ns`; never late, never back."""
        self._now_ns = max(self._now_ns, deadline_ns)
        return 0
