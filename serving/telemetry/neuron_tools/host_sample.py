"""Cumulative totals of this machine's vCPUs and memory, and of a server's processes.

Real figures of the command's machine, in wall time; two samples make a usage, in the fields of
neuron-monitor.

Source of the fields: AWS Neuron SDK docs, neuron-monitor-user-guide.rst: vcpu_usage, memory_info,
neuron_runtime_vcpu_usage. Percentages are of all vCPUs together.
"""

import contextlib
from dataclasses import astuple, dataclass, fields
from typing import Any, Final

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


KINDS: Final = tuple(field.name for field in fields(CpuTimes))


def vcpu_usage(before: HostSample, now: HostSample) -> dict[str, Any]:
    """The `vcpu_usage` group."""
    each = [_shares(then, after) for then, after in zip(before.vcpus, now.vcpus, strict=False)]
    return {
        "period": now.wall_s - before.wall_s,
        "average_usage": {
            kind: sum(shares[kind] for shares in each) / len(each) if each else 0.0
            for kind in KINDS
        },
        "usage_data": {str(number): shares for number, shares in enumerate(each)},
        "context_switch_count": max(now.context_switches - before.context_switches, 0),
        "error": "",
    }


def memory_info(before: HostSample, now: HostSample) -> dict[str, Any]:
    """The `memory_info` group."""
    return {
        "period": now.wall_s - before.wall_s,
        "memory_total_bytes": now.memory_total_bytes,
        "memory_used_bytes": now.memory_used_bytes,
        "swap_total_bytes": now.swap_total_bytes,
        "swap_used_bytes": now.swap_used_bytes,
        "error": "",
    }


def runtime_vcpu_usage(before: HostSample, now: HostSample) -> dict[str, Any]:
    """The `neuron_runtime_vcpu_usage` group: 0 with an error where the server is not visible."""
    wall_s = now.wall_s - before.wall_s
    usage, error = {"user": 0.0, "system": 0.0}, ""
    if before.server is None or now.server is None:
        error = "the server's processes are not on this machine, or another user's"
    elif wall_s > 0:
        whole_s = wall_s * max(len(now.vcpus), 1)
        user_s, system_s = _spent(before.server, now.server)
        usage = {"user": 100 * user_s / whole_s, "system": 100 * system_s / whole_s}
    return {"period": wall_s, "vcpu_usage": usage, "error": error}


def _spent(before: ServerSample, now: ServerSample) -> tuple[float, float]:
    """User and system seconds of the processes that run now; a new one counts whole."""
    user_s, system_s = 0.0, 0.0
    for pid, (user, system) in now.cpu_s.items():
        user_then, system_then = before.cpu_s.get(pid, (0.0, 0.0))
        user_s += max(user - user_then, 0.0)
        system_s += max(system - system_then, 0.0)
    return user_s, system_s


def _shares(before: CpuTimes, now: CpuTimes) -> dict[str, float]:
    """Percent of the time of all kinds; 0 when none has passed."""
    spent = [
        max(later - then, 0.0) for then, later in zip(astuple(before), astuple(now), strict=True)
    ]
    whole = sum(spent)
    return {
        kind: 100 * seconds / whole if whole else 0.0
        for kind, seconds in zip(KINDS, spent, strict=True)
    }
