"""Distinguishes silent chips from computing ones by their threads' CPU activity.

An answer may take half a minute on a host with more chips than cores, so lateness alone is no sign;
a thread without CPU time for the whole silence timeout is, unless it waits for a disk or is
debugged. A chip that reads weights may wait for a file system in another process (FUSE), so it is
silent only when stopped; so is one that waits for other chips. On other machines only the caller's
longest wait counts.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator.actors.channel import Channel
from emulator.actors.codec import Message
from emulator.chip.effects import ChipReady
from emulator.errors import ChipSilent

_LOOK_EVERY_S: Final = 0.25
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_AT_WORK: Final = "RD"
"""States of a thread that runs, is runnable, or waits for a disk (proc(5))."""

_DEBUGGED: Final = "t"
_STOPPED: Final = "T"
_GONE: Final = "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A thread's state letter and CPU ticks."""

    state: str
    ticks: int


@dataclass(slots=True)
class _LastPulse:
    pulse: Pulse | None
    since_s: float


def ready(chip: int) -> ChipReady:
    """A loaded chip's report, with the process and thread to watch."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    return ChipReady(chip=chip, pid=os.getpid(), thread=threading.get_native_id(), boot=boot)


class ChipWatch:
    """The processes of one hub's chips on this machine. `silence_timeout_s` is wall time."""

    def __init__(self, silence_timeout_s: float) -> None:
        self.silence_timeout_s = silence_timeout_s
        self._boot = _BOOT_ID.read_text(encoding="ascii").strip()
        self._threads: dict[int, Path] = {}
        self._stopped_since_s: dict[int, float] = {}
        self._looked_s = -_LOOK_EVERY_S

    def add(self, said: ChipReady) -> None:
        """Watch a chip, unless it is on another machine."""
        if said.boot == self._boot:
            self._threads[said.chip] = Path(f"/proc/{said.pid}/task/{said.thread}/stat")

    def forget(self, chip: int) -> None:
        """Stop watching `chip`; idempotent."""
        self._threads.pop(chip, None)
        self._stopped_since_s.pop(chip, None)

    def receive(
        self,
        hub: Channel,
        chips: Collection[int],
        longest_s: float,
        *,
        waits: Callable[[int], bool] = lambda _: False,
        progress: Callable[[], int] = lambda: 0,
    ) -> Iterator[tuple[int, Message]]:
        """`Channel.receive` with `longest_s`, which finds an inactive chip earlier.

        A chip that `waits` for something is silent only when its process is stopped. No chip is
        late while `progress` is made. ChipSilent names inactive chips, or the late ones; those
        that wait for others only where none else is late.
        """
        left = set(chips)
        seen: dict[int, _LastPulse] = {}
        last_s, made = time.monotonic(), progress()
        slice_s = min(_LOOK_EVERY_S, longest_s) if left & self._threads.keys() else longest_s
        while left:
            try:
                for chip, message in hub.receive(left.copy(), slice_s):
                    left.discard(chip)
                    last_s = time.monotonic()
                    yield chip, message
            except ChipSilent:
                before, made = made, progress()
                if made != before:
                    last_s = time.monotonic()
                if time.monotonic() - last_s >= longest_s or slice_s == longest_s:
                    late = [chip for chip in left if not waits(chip)] or left
                    raise ChipSilent(tuple(sorted(late)), longest_s) from None
                silent = [chip for chip in left if self._is_silent(chip, seen, waits(chip))]
                if silent:
                    raise ChipSilent(tuple(sorted(silent)), self.silence_timeout_s) from None

    def _is_silent(self, chip: int, seen: dict[int, _LastPulse], waits: bool) -> bool:
        now_s, thread = time.monotonic(), self._threads.get(chip)
        if thread is None:
            return False
        pulse = _pulse(thread)
        before = seen.get(chip)
        if (
            before is None
            or pulse is None
            or pulse != before.pulse
            or pulse.state in _AT_WORK + _DEBUGGED
            or (waits and pulse.state not in _STOPPED)
        ):
            seen[chip] = _LastPulse(pulse, now_s)
            return False
        return now_s - before.since_s >= self.silence_timeout_s

    def look(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Chips whose process is gone, and those stopped for the silence timeout.

        For idle chips. Polls every 0.25 s at most; calls in between return none.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return (), ()
        self._looked_s = now_s
        gone, stopped = [], []
        for chip, thread in sorted(self._threads.items()):
            pulse = _pulse(thread)
            if pulse is None or pulse.state in _GONE:
                gone.append(chip)
            elif pulse.state in _STOPPED:
                since_s = self._stopped_since_s.setdefault(chip, now_s)
                if now_s - since_s >= self.silence_timeout_s:
                    stopped.append(chip)
            else:
                self._stopped_since_s.pop(chip, None)
        return tuple(gone), tuple(stopped)


def _pulse(thread: Path) -> Pulse | None:
    try:
        text = thread.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name may hold anything; after it come the state, 10 numbers, utime and stime.
    fields = text.rpartition(")")[2].split()
    return Pulse(state=fields[0], ticks=int(fields[11]) + int(fields[12]))
