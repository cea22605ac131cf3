"""This host's real CPUs and memory, and the server's share of them."""

import time
from dataclasses import asdict, dataclass
from typing import Final

import psutil

from serving.telemetry.neuron_tools.host_sample import CpuTimes

_READ_AGAIN_S: Final = 1.0
"""Shorter shares say little, and /proc is read for each process."""

_LIST_AGAIN_S: Final = 10.0
"""Validity of the list of the server's processes: chips come and go rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """Real figures, not emulated ones.

    Attributes:
        cpu_share: of all CPUs' time since the last reading, by neuron-monitor's names.
        server_share: `user` and `system` time of the server's processes, of the same.
    """

    cpus: int
    cpu_share: dict[str, float]
    server_share: dict[str, float]
    memory_total_bytes: int
    memory_used_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """Seconds so far: of all CPUs by use, and of each process (user, system)."""

    read_s: float
    cpu: dict[str, float]
    server: dict[int, tuple[float, float]]


class HostMeter:
    """Meter of process `pid` and its descendants; a new process counts from its second reading."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._processes: list[psutil.Process] = [self._root]
        self._listed_s = -_LIST_AGAIN_S
        self._cpus = psutil.cpu_count() or 1
        self._before = self._counted()
        self._last = self._reading(self._before)

    def read(self) -> HostReading:
        """A reading at most a second old."""
        if time.monotonic() - self._before.read_s >= _READ_AGAIN_S:
            now = self._counted()
            self._last, self._before = self._reading(now), now
        return self._last

    def _counted(self) -> _Counted:
        return _Counted(
            read_s=time.monotonic(),
            cpu=asdict(CpuTimes.of(psutil.cpu_times())),
            server=self._used(),
        )

    def _reading(self, now: _Counted) -> HostReading:
        before = self._before
        spent = {name: max(0.0, each - before.cpu[name]) for name, each in now.cpu.items()}
        total_s = sum(spent.values()) or 1.0
        user_s = system_s = 0.0
        for pid, (user, system) in now.server.items():
            was = before.server.get(pid, (user, system))
            user_s += max(0.0, user - was[0])
            system_s += max(0.0, system - was[1])
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return HostReading(
            cpus=self._cpus,
            cpu_share={name: each / total_s for name, each in spent.items()},
            server_share={"user": user_s / total_s, "system": system_s / total_s},
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            swap_total_bytes=swap.total,
            swap_used_bytes=swap.used,
        )

    def _used(self) -> dict[int, tuple[float, float]]:
        """User and system seconds of each of the server's processes that still runs."""
        now_s = time.monotonic()
        if now_s - self._listed_s >= _LIST_AGAIN_S:
            self._processes = [self._root, *self._root.children(recursive=True)]
            self._listed_s = now_s
        used = {}
        for process in self._processes:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used[process.pid] = (times.user, times.system)
        return used
