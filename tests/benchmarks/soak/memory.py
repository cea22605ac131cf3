"""The memory of a server's processes over time, by what they are."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import psutil

KB = 1_024


def process_roles(server_pid: int) -> dict[int, str]:
    """What each process of the server is: api, engine, chip, or ray for what runs the chips."""
    roles = {server_pid: "api"}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(server_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                roles[child.pid] = _role(" ".join([child.name(), *child.cmdline()]))
    return roles


def _role(shown: str) -> str:
    if "EngineCore" in shown:
        return "engine"
    return "chip" if "ChipActor" in shown else "ray"


def own_bytes(pid: int) -> int:
    """Memory of a process, shared pages by its share of them (Pss); 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * KB
    return 0


class MemoryWatch:
    """Readings by role, each the mean of a process of that role, with when they were made."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self.readings: list[tuple[float, Mapping[str, float]]] = []

    def read(self, at_s: float) -> None:
        """Read now; `at_s` is the run's time."""
        found: dict[str, list[int]] = defaultdict(list)
        for pid, role in process_roles(self._server_pid).items():
            if held_bytes := own_bytes(pid):
                found[role].append(held_bytes)
        means = {role: sum(each) / len(each) for role, each in found.items()}
        self.readings.append((at_s, means))

    def mean(self, role: str, *, from_s: float, to_s: float) -> float:
        """Mean bytes of a process of `role` between two times; NaN without a reading."""
        found = [
            means[role] for at_s, means in self.readings if from_s <= at_s <= to_s and role in means
        ]
        return sum(found) / len(found) if found else float("nan")

    @property
    def roles(self) -> tuple[str, ...]:
        """Those that were ever there."""
        return tuple(sorted({role for _, means in self.readings for role in means}))
