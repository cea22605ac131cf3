"""Runs simulations in parallel: in processes of this machine, or on a Ray cluster."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, resource_tracker
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from emulator.errors import WorkersLost

if TYPE_CHECKING:
    from emulator.actors.ray_tasks import RayTasks

Task = TypeVar("Task")
Result = TypeVar("Result")


class SimulationWorkers:
    """`count` processes, from the first work in the `with` until its end; with one, this process
    does the work.

    With `ray_address` ("host:port", "auto" or "local", as Ray has them) the CPUs of that cluster do
    it, and are the `count`. Results do not depend on which. An exception in the `with`, an
    interrupt too, ends what runs at once. Raises ConfigError for a cluster that cannot be joined.
    """

    def __init__(self, count: int = 1, *, ray_address: str | None = None) -> None:
        self.count = count
        self._ray_address = ray_address
        self._before = set(active_children())
        self._entered = False
        self._pool: ProcessPoolExecutor | None = None
        self._ray: RayTasks | None = None

    def __enter__(self) -> Self:
        if self._ray_address is not None:
            from emulator.actors.ray_tasks import RayTasks

            self._ray = RayTasks(self._ray_address)
            try:
                self._ray.start()
            except BaseException:
                self._ray.stop()
                raise
            self.count = self._ray.cpus
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._ray is not None:
            self._ray.stop()
        if self._pool is None:
            return
        if error is not None:
            self.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """End what runs, at once; the processes simulate no more."""
        if self._pool is not None:
            for child in set(active_children()) - self._before:
                child.terminate()

    def map(self, simulate: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Results of `simulate`, a module's function, in the tasks' order.

        Raises what it raises, and WorkersLost when a process that simulates is gone.
        """
        return list(self.results(simulate, tasks))

    def results(
        self, simulate: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        """`map`, each result as soon as it and those before it are there."""
        if self._ray is not None:
            return self._ray.results(simulate, tasks)
        if self.count == 1 or not self._entered:
            return map(simulate, tasks)
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.count, mp_context=get_context("spawn"), initializer=_one_thread
            )
        return _results_of(self._pool, simulate, tasks)


def _one_thread() -> None:
    """A process for each core has no more of them."""
    os.environ["NUMBA_NUM_THREADS"] = "1"


def _results_of(
    pool: ProcessPoolExecutor, simulate: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[Result]:
    # A Ctrl-C goes to every process of a terminal; the one that has the workers ends them. They
    # are started here and inherit what is blocked, so that none sees one, however early.
    resource_tracker.ensure_running()  # which would unblock it when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            results = pool.map(simulate, tasks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield from results
    except BrokenProcessPool as error:
        raise WorkersLost("a process that simulated has ended, killed or out of memory") from error


THIS_PROCESS: Final = SimulationWorkers()
"""No others; it needs no `with`."""
