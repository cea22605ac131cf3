"""Engines that make many steps side by side, in threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Self

from serving.simulator.simulated_engine import SimulatedEngine
from serving.simulator.steps_ahead import RunStops, StepsDone


class EngineThreads:
    """One thread a core; NUMBA_NUM_THREADS says how many, as it does for Numba."""

    def __init__(self) -> None:
        self._count = int(os.environ.get("NUMBA_NUM_THREADS", len(os.sched_getaffinity(0))))
        self._threads = ThreadPoolExecutor(self._count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def go_ahead(
        self,
        begins: Sequence[tuple[SimulatedEngine, int]],
        until_ns: float,
        stops_of: Callable[[SimulatedEngine], RunStops],
    ) -> list[tuple[SimulatedEngine, StepsDone]]:
        """Let each engine make all its steps from its own time on; see `SimulatedEngine.go_ahead`.

        `stops_of` is asked in the threads.
        """

        def go_ahead(number: int) -> list[tuple[SimulatedEngine, StepsDone]]:
            return [
                (engine, engine.go_ahead(begin_ns, until_ns, stops_of(engine)))
                for engine, begin_ns in begins[number :: self._count]
            ]

        done = self._threads.map(go_ahead, range(min(self._count, len(begins))))
        return [*chain.from_iterable(done)]
