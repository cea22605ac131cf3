"""Cumulative totals of this machine's vCPUs and memory, and of a server's processes.

Real figures of the command's machine, in wall time; two samples make a usage (`host_usage`).
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import psutil

from serving.telemetry.neuron_tools.server_processes import ServerProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Seconds of vCPUs since the host's start, by neuron-monitor's names."""

    user: float
    nice: float
    system: float
    idle: float
    io_wait: float
    irq: float
    soft_irq: float

    @classmethod
    def of(cls, times: Any) -> "CpuTimes":
        """Of psutil's times; 0 for kinds that the system does not count."""
        return cls(
            user=times.user,
            nice=times.nice,
            system=times.system,
            idle=times.idle,
            io_wait=getattr(times, "iowait", 0.0),
            irq=getattr(times, "irq", 0.0),
            soft_irq=getattr(times, "softirq", 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """User and system seconds by process; memory of all, shared pages counted once."""

    cpu_s: dict[int, tuple[float, float]]
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One moment; `server` is None where its processes are not visible."""

    wall_s: float
    vcpus: tuple[CpuTimes, ...]
    context_switches: int
    memory_total_bytes: int
    memory_used_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    server: ServerSample | None


def host_sample(wall_s: float, processes: ServerProcesses | None) -> HostSample:
    """This machine now; `wall_s` is the caller's monotonic clock."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return HostSample(
        wall_s=wall_s,
        vcpus=tuple(map(CpuTimes.of, psutil.cpu_times(percpu=True))),
        context_switches=psutil.cpu_stats().ctx_switches,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.used,
        swap_total_bytes=swap.total,
        swap_used_bytes=swap.used,
        server=None if processes is None else _server_sample(processes),
    )


def _server_sample(processes: ServerProcesses) -> ServerSample:
    """Of the server's processes, without those that end meanwhile."""
    cpu_s: dict[int, tuple[float, float]] = {}
    memory_bytes = 0
    for pid in processes.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            times = process.cpu_times()
            memory_bytes += _memory_bytes(process)
            cpu_s[pid] = (times.user, times.system)
    return ServerSample(cpu_s=cpu_s, memory_bytes=memory_bytes)


def _memory_bytes(process: psutil.Process) -> int:
    """Its own pages and its share of shared ones (PSS), else the resident set."""
    with contextlib.suppress(psutil.AccessDenied, AttributeError):  # PSS is Linux'
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)
