"""A host's usage between two samples, in the fields of neuron-monitor.

Source of the fields: AWS Neuron SDK docs, neuron-monitor-user-guide.rst: vcpu_usage, memory_info,
neuron_runtime_vcpu_usage. Percentages are of all vCPUs together.
"""

from dataclasses import astuple, fields
from typing import Any, Final

from serving.telemetry.neuron_tools.host_sample import CpuTimes, HostSample, ServerSample

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
