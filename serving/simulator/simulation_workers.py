"""Runs simulations in parallel processes."""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context, resource_tracker
from types import TracebackType
from typing import Self, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class SimulationWorkers:
    """`count` processes that live for the `with`; with one, this process does the work.

    Each imports vLLM once. An exception in the `with`, an interrupt too, ends them at once. Results
    do not depend on the count.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._before = set(active_children())
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.count > 1:
            self._pool = ProcessPoolExecutor(self.count, mp_context=get_context("spawn"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if error is not None:
            for child in set(active_children()) - self._before:
                child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, simulate: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Results of `simulate`, a module's function, in the tasks' order."""
        if self._pool is None:
            return [simulate(task) for task in tasks]
        # A Ctrl-C goes to every process of a terminal; the one that has the workers ends them. They
        # are started here and inherit what is blocked, so that none sees one, however early.
        resource_tracker.ensure_running()  # which would unblock it when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = self._pool.map(simulate, tasks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return list(results)
