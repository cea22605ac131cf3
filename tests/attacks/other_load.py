"""CPU use of the machine by others than the server and its clients.

Latencies say less on a shared machine, so results report it.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuUse:
    """Processor seconds so far: of the whole machine, and of the attack."""

    machine_s: float
    ours_s: float
    idle_s: float

    @classmethod
    def now(cls, processes: Sequence[psutil.Process]) -> Self:
        """`processes`, this process and its ended children count as ours."""
        times = psutil.cpu_times()
        idle_s = times.idle + times.iowait
        ours = os.times()
        ours_s = ours.user + ours.system + ours.children_user + ours.children_system
        for process in processes:
            with contextlib.suppress(psutil.Error):
                used = process.cpu_times()
                ours_s += used.user + used.system
        # `user` holds `guest` already; what a hypervisor took is nobody's idleness.
        whole_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return cls(machine_s=whole_s, ours_s=ours_s, idle_s=idle_s)


def others_share(before: CpuUse, after: CpuUse) -> float:
    """The others' share of all cores between the two, from 0 to 1."""
    whole_s = after.machine_s - before.machine_s
    if whole_s <= 0:
        return 0.0
    busy_s = whole_s - (after.idle_s - before.idle_s)
    return min(1.0, max(0.0, (busy_s - (after.ours_s - before.ours_s)) / whole_s))
