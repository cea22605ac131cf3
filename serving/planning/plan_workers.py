"""Several sizes simulated at once, each in a process of its own."""

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context, resource_tracker
from types import TracebackType
from typing import Self

from serving.planning.plan_check import Check, SizeTask, check_size


class CheckWorkers:
    """`count` processes that stay until the end of the `with`; with one, this process does it all.

    They import vLLM once each. An exception in the `with`, an interrupt too, ends them at once.
    Results do not depend on the count.
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

    def check(self, tasks: Sequence[SizeTask]) -> list[Check]:
        """Simulate all of them, in their order."""
        if self._pool is None:
            return [check_size(task) for task in tasks]
        # A Ctrl-C goes to every process of a terminal; the one that has the workers ends them. They
        # are started here and inherit what is blocked, so that none sees one, however early.
        resource_tracker.ensure_running()  # which would unblock it when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            checks = self._pool.map(check_size, tasks)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return list(checks)
