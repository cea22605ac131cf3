"""Alarms that wake an event loop at a time of the monotonic clock.

asyncio's own timers end up to a millisecond late, for its loop waits in whole milliseconds. On
Linux a timer of the kernel (timerfd_create(2)) wakes it within some tens of microseconds instead,
without keeping the processor busy until the time has come; `python -m tests.benchmarks.alarms`
measures both. Elsewhere the loop's own timer has to do.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Final

from loadgen.attack.pace import Pace
from loadgen.attack.timetable import Action, Alarm

# <sys/timerfd.h> and <time.h> of Linux: the same on all of its architectures. Python 3.13 has
# os.timerfd_create, which does without ctypes.
CLOCK_MONOTONIC: Final = 1
TFD_TIMER_ABSTIME: Final = 1

NS_PER_S: Final = 1_000_000_000


class LoopAlarm:
    """The event loop's own timer: everywhere, and up to a millisecond late."""

    def __init__(self, action: Action, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._loop = asyncio.get_running_loop()
        self._action = action
        self._now_ns = now_ns
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        """See `Alarm.set`."""
        self.close()
        delay_s = max(0.0, (at_ns - self._now_ns()) / NS_PER_S)
        self._timer = self._loop.call_later(delay_s, self._action)

    def close(self) -> None:
        """See `Alarm.close`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Timespec(ctypes.Structure):
    # glibc's struct timespec where a time is as long as a word: every 64-bit system. A 32-bit one
    # may have 64-bit times, and gets the loop's own timer.
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


@cache
def _libc() -> ctypes.CDLL:
    """The C library, with its timers' signatures; raises AttributeError if it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.timerfd_create.argtypes = (ctypes.c_int, ctypes.c_int)
    setting = ctypes.POINTER(_TimerSetting)
    libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, setting, setting)
    return libc


class KernelAlarm:
    """A timer of the Linux kernel, as a file that the event loop watches."""

    def __init__(self, action: Action) -> None:
        """Raises OSError or AttributeError where there is no such timer."""
        self._loop = asyncio.get_running_loop()
        self._action = action
        self._libc = _libc()
        self._setting = _TimerSetting()
        self._file = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._file, self._rings)

    def set(self, at_ns: int) -> None:
        """See `Alarm.set`."""
        # A time of zero would switch the timer off; any that has passed rings at once.
        seconds, nanoseconds = divmod(max(1, at_ns), NS_PER_S)
        self._setting.value.seconds = seconds
        self._setting.value.nanoseconds = nanoseconds
        setting = ctypes.byref(self._setting)
        if self._libc.timerfd_settime(self._file, TFD_TIMER_ABSTIME, setting, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """See `Alarm.close`. May be repeated."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rings(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew between the kernel's word and this call
            return
        self._action()


class PacedAlarm:
    """`alarm`, which is of the monotonic clock, set by the steady time of a run (see `Pace`)."""

    def __init__(self, alarm: Alarm, pace: Pace, origin_ns: int) -> None:
        self._alarm = alarm
        self._pace = pace
        self._origin_ns = origin_ns

    def set(self, at_ns: int) -> None:
        """See `Alarm.set`; steady ns since the run's start."""
        self._alarm.set(self._origin_ns + self._pace.wall_ns(at_ns))

    def close(self) -> None:
        """See `Alarm.close`."""
        self._alarm.close()


def make_alarm(action: Action) -> Alarm:
    """Return the best alarm that this system has, for the event loop that runs now."""
    if sys.platform == "linux" and sys.maxsize > 2**32:
        try:
            return KernelAlarm(action)
        except (OSError, AttributeError):  # a kernel or C library without it
            pass
    return LoopAlarm(action)
