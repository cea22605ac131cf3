"""Workers of a search on processors that have nothing else to do.

A search within a budget finds less on a busy machine. Here one process does all work, and its clock
is what that work would take on `count` quiet processors: each simulation's processor time is put on
the one that is free first, and what the search does between them follows the last. Only what waits
for nothing may be timed so: a plan's searches do.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

from serving.simulator import SimulationWorkers

Task = TypeVar("Task")
Result = TypeVar("Result")


class VirtualWorkers(SimulationWorkers):
    """As many as a search is to have; `time.monotonic` and `time.time` are theirs in `clock`."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self._at_s = 0.0
        self._cpu_s = time.process_time()

    def now_s(self) -> float:
        """Since the beginning, on quiet processors."""
        return self._at_s + time.process_time() - self._cpu_s

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Within it the time is that of these workers."""
        began_s, unix_s = time.monotonic(), time.time()
        self._set(0.0)

        def monotonic() -> float:
            return began_s + self.now_s()

        def unix() -> float:
            return unix_s + self.now_s()

        with mock.patch.object(time, "monotonic", monotonic), mock.patch.object(time, "time", unix):
            yield

    def results(
        self, simulate: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        """One after another, as if each began on the processor that is free first."""
        free_s = [self.now_s()] * self.count
        found: list[Any] = []
        for task in tasks:
            worker = free_s.index(min(free_s))
            self._set(free_s[worker])
            found.append(simulate(task))
            free_s[worker] = self.now_s()
        self._set(max(free_s))
        return iter(found)

    def _set(self, at_s: float) -> None:
        self._at_s, self._cpu_s = at_s, time.process_time()
