"""Distinguishes silent chips from computing ones by their processes' activity.

An answer may take half a minute on a host with more chips than cores, so lateness alone says
nothing; a thread without CPU time for the whole silence timeout does, unless it waits for a disk. A
chip that reads weights may wait for a file system in another process (FUSE) and look idle: it is
silent only when stopped. A process under a debugger is not silent. Where a process is on another
machine only the answer counts, within the caller's longest wait.
"""

import os
import threading
import time
from collections.abc import Collection, Iterator
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
"""States of a thread that runs, could run, or waits for a disk (proc(5))."""

_DEBUGGED: Final = "t"
_STOPPED: Final = "T"
_GONE: Final = "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Activity of a thread: its state's letter, and its CPU ticks."""

    state: str
    ticks: int


@dataclass(slots=True)
class _LastPulse:
    """The last pulse, and when the thread was last active."""

    pulse: Pulse | None
    since_s: float


def ready(chip: int) -> ChipReady:
    """A chip's report once it has loaded: where its process can be seen."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip()
    return ChipReady(chip=chip, pid=os.getpid(), thread=threading.get_native_id(), boot=boot)


class ChipWatch:
    """The processes of the chips of one hub, on this machine.

    `silence_timeout_s` is wall time.
    """

    def __init__(self, silence_timeout_s: float) -> None:
        self.silence_timeout_s = silence_timeout_s
        self._boot = _BOOT_ID.read_text(encoding="ascii").strip()
        self._threads: dict[int, Path] = {}
        self._stopped_since_s: dict[int, float] = {}
        self._looked_s = -_LOOK_EVERY_S

    def add(self, said: ChipReady) -> None:
        """A chip is there; one on another machine cannot be seen."""
        if said.boot == self._boot:
            self._threads[said.chip] = Path(f"/proc/{said.pid}/task/{said.thread}/stat")

    def forget(self, chip: int) -> None:
        """A chip is gone; idempotent."""
        self._threads.pop(chip, None)
        self._stopped_since_s.pop(chip, None)

    def receive(
        self,
        hub: Channel,
        chips: Collection[int],
        longest_s: float,
        *,
        reading: Collection[int] = (),
    ) -> Iterator[tuple[int, Message]]:
        """As `Channel.receive` with `longest_s`, but finds an inactive chip earlier.

        A chip that is `reading` weights counts as silent only where its process is stopped.

        Raises as `Channel.receive`; ChipSilent names inactive chips, or all that are late.
        """
        left = set(chips)
        seen: dict[int, _LastPulse] = {}
        last_s = time.monotonic()
        slice_s = min(_LOOK_EVERY_S, longest_s) if left & self._threads.keys() else longest_s
        while left:
            try:
                for chip, message in hub.receive(left.copy(), slice_s):
                    left.discard(chip)
                    last_s = time.monotonic()
                    yield chip, message
            except ChipSilent:
                if time.monotonic() - last_s >= longest_s or slice_s == longest_s:
                    raise
                silent = [chip for chip in left if self._is_silent(chip, seen, chip in reading)]
                if silent:
                    raise ChipSilent(tuple(sorted(silent)), self.silence_timeout_s) from None

    def _is_silent(self, chip: int, seen: dict[int, _LastPulse], reads: bool) -> bool:
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
            or (reads and pulse.state not in _STOPPED)
        ):
            seen[chip] = _LastPulse(pulse, now_s)
            return False
        return now_s - before.since_s >= self.silence_timeout_s

    def look(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Chips whose process is gone or has been stopped for the silence timeout.

        For chips that owe no answer. Polls a few times a second at most; calls in between return
        nothing.
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
    """None when there is no such thread any more."""
    try:
        text = thread.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name may hold anything; after it come the state, 10 numbers, utime and stime.
    fields = text.rpartition(")")[2].split()
    return Pulse(state=fields[0], ticks=int(fields[11]) + int(fields[12]))
