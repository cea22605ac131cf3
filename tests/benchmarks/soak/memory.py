"""The memory of a server's processes over time, by what they are."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.server_process import ServerProcess

KB = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the processes of one role hold: how many they are, all of them, the largest of them."""

    processes: int
    total_bytes: float
    largest_bytes: float


Reading = tuple[float, Mapping[str, Held]]
"""The run's time, and what each role held then."""


def process_roles(server: ServerProcess) -> dict[int, str]:
    """What each process of the server is: api, engine, chip, or ray for what runs the chips."""
    server.look()
    roles = {pid: _role(shown) for (pid, _), shown in server.running().items()}
    return roles | {server.pid: "api"}


def _role(shown: str) -> str:
    if "EngineCore" in shown:
        return "engine"
    return "chip" if "ChipWorker" in shown else "ray"


def own_bytes(pid: int) -> int:
    """Memory of a process that is no file's, what forks share by its share; 0 when it has ended.

    Mapped files are left out: a share of a library's pages changes with whoever else has them.
    """
    found = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                found += int(line.split()[1]) * KB
    return found


class MemoryWatch:
    """Readings of what each role's processes hold, with when they were made."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.readings: list[Reading] = []

    def read(self, at_s: float) -> None:
        """Read now; `at_s` is the run's time."""
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
    """What each role held early and late, both of a whole machine; prints it.

    Returns, in words, where the processes are not as many, or all of them or the largest of them
    hold more or less by more than a share. One process's leak shows in the largest of its role, a
    process that is left behind in the number.
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
    """The most processes that there were, and the means of the readings that show so many."""
    none = Held(processes=0, total_bytes=0.0, largest_bytes=0.0)
    each = [held.get(role, none) for _, held in readings] or [none]
    most = max(held.processes for held in each)
    whole = [held for held in each if held.processes == most]
    return Held(
        processes=most,
        total_bytes=sum(held.total_bytes for held in whole) / len(whole),
        largest_bytes=sum(held.largest_bytes for held in whole) / len(whole),
    )
