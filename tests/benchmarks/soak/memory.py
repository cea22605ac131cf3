"""The memory of a server's processes over time, by role."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.server_process import ServerProcess

KB = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The processes of one role: number, total, and the largest."""

    processes: int
    total_bytes: float
    largest_bytes: float


Reading = tuple[float, Mapping[str, Held]]
"""The run's time, and each role's memory."""


def process_roles(server: ServerProcess) -> dict[int, str]:
    """The role of each process of the server: api, engine, chip, or ray."""
    server.look()
    roles = {pid: _role(shown) for (pid, _), shown in server.running().items()}
    return roles | {server.pid: "api"}


def _role(shown: str) -> str:
    if "EngineCore" in shown:
        return "engine"
    return "chip" if "ChipWorker" in shown else "ray"


def own_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, shares of forks included; 0 if it has ended.

    Mapped files are left out: a share of a library's pages changes with its other users.
    """
    found = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                found += int(line.split()[1]) * KB
    return found


class MemoryWatch:
    """Readings of each role's memory, with their times."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.readings: list[Reading] = []

    def read(self, at_s: float) -> None:
        found: dict[str, list[int]] = defaultdict(list)
        for pid, role in process_roles(self._server).items():
            if held_bytes := own_bytes(pid):
                found[role].append(held_bytes)
        held = {
            role: Held(processes=len(each), total_bytes=sum(each), largest_bytes=max(each))
            for role, each in found.items()
        }
        self.readings.append((at_s, held))


def changes(early: list[Reading], late: list[Reading], share_max: float) -> list[str]:
    """Print and compare each role early and late, both of a whole machine.

    Returns, in words, changes in the number of processes, and changes by more than a share in their
    total or their largest. One process's leak shows in the largest of its role, a process left
    behind in the number.
    """
    found = []
    for role in sorted({role for _, held in [*early, *late] for role in held}):
        before, after = _typical(early, role), _typical(late, role)
        print(
            f"memory, {role}: {before.processes} -> {after.processes} processes, "
            f"{before.total_bytes / 1e6:,.1f} -> {after.total_bytes / 1e6:,.1f} MB, the largest "
            f"{before.largest_bytes / 1e6:,.1f} -> {after.largest_bytes / 1e6:,.1f} MB"
        )
        if before.processes != after.processes:
            found.append(f"processes of {role}: {before.processes} -> {after.processes}")
        for what, was, now in (
            ("all", before.total_bytes, after.total_bytes),
            ("the largest", before.largest_bytes, after.largest_bytes),
        ):
            if not abs(now - was) <= share_max * was:
                found.append(f"memory of {what} of {role}: {was / 1e6:,.1f} -> {now / 1e6:,.1f} MB")
    return found


def _typical(readings: list[Reading], role: str) -> Held:
    """The largest number of processes, and the means of readings with so many."""
    none = Held(processes=0, total_bytes=0.0, largest_bytes=0.0)
    each = [held.get(role, none) for _, held in readings] or [none]
    most = max(held.processes for held in each)
    whole = [held for held in each if held.processes == most]
    return Held(
        processes=most,
        total_bytes=sum(held.total_bytes for held in whole) / len(whole),
        largest_bytes=sum(held.largest_bytes for held in whole) / len(whole),
    )
