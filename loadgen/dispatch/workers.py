"""The parent's side of `--workers`: starts processes, gathers their results, ends them.

Results come in batches, out of order between workers. A worker that dies ends the run: the others
are stopped, results so far are kept, and the problem is one line.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from loadgen.dispatch.job import Job, JobEnd, ProgressObserver
from loadgen.dispatch.worker import (
    Awake,
    Batch,
    Follow,
    Go,
    StopWorker,
    WorkerDone,
    WorkerFailed,
    WorkerReady,
    work,
)
from loadgen.records.result import Result

HEAD_START_NS: Final = 50_000_000
"""From `Go` to the first request: by then every worker has read it."""

LAST_WORDS_TIMEOUT_S: Final = 10.0


@dataclass(slots=True, eq=False)
class _WorkerProcess:
    job: Job
    process: SpawnProcess
    pipe: Connection
    in_flight: dict[str, int] = field(default_factory=dict)
    awake: bool = False
    ready: bool = False
    end: JobEnd | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersEnd:
    """Outcome of the workers. `ends` lacks a worker that died, which `problem` names."""

    ends: Sequence[JobEnd] = field(default=())
    problem: str = ""


class Workers:
    """Does one job in several processes; use once, as a context that leaves none behind."""

    def __init__(
        self, jobs: Sequence[Job], *, sink: Callable[[Result], None], observer: ProgressObserver
    ) -> None:
        self._jobs = jobs
        self._sink = sink
        self._observer = observer
        self._workers: list[_WorkerProcess] = []
        self._problem = ""
        self._stopped = False
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()

    async def run(self, origin_ns: Callable[[], Awaitable[int]]) -> WorkersEnd:
        """Start all, dispatch, and wait for their ends.

        `origin_ns` is as in `do_job`, called when all are ready; the start is `HEAD_START_NS`
        later. An exception of it, the sink or the observer ends the run and is raised.
        """
        try:
            self._start()
            await self._until(lambda: all(each.ready or each.gone for each in self._workers))
            if not self._problem and not self._stopped:
                go = Go(await origin_ns())
                if not self._problem and not self._stopped:  # meanwhile
                    self._tell_all(go)
            await self._until(lambda: all(each.end or each.gone for each in self._workers))
        finally:
            await self._end()
        if self._fault is not None:
            raise self._fault
        ends = [each.end for each in self._workers if each.end is not None]
        return WorkersEnd(ends=ends, problem=self._problem)

    def follow(self, steady_per_wall: float) -> None:
        """See `Dispatcher.follow`."""
        self._tell_all(Follow(steady_per_wall))

    def stop(self) -> None:
        """Stop sending, and abort requests under way. Idempotent, also before `run`."""
        self._stopped = True
        self._tell_all(StopWorker())  # the others get it after their jobs

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # multiprocessing's own, which lets Ctrl-C through again
        loop = asyncio.get_running_loop()
        for job in self._jobs:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(theirs,), name=f"loadgen worker {job.worker}", daemon=True
            )
            worker = _WorkerProcess(job, process, ours)
            self._workers.append(worker)
            with _ctrl_c_held_back():
                process.start()
            theirs.close()  # so that its end is seen here
            loop.add_reader(ours.fileno(), partial(self._heard, worker))
            os.set_blocking(ours.fileno(), True)  # uvloop has changed that: a message is whole

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _heard(self, worker: _WorkerProcess) -> None:
        try:
            word = worker.pipe.recv()
        except (EOFError, OSError):
            self._gone(worker)
            return
        try:
            self._take(worker, word)
        except Exception as fault:  # noqa: BLE001 - raised by `run`, once all is stopped
            self._fault = self._fault or fault
            self.stop()

    def _take(self, worker: _WorkerProcess, word: object) -> None:
        if isinstance(word, Batch):
            self._take_batch(worker, word)
            return
        if isinstance(word, Awake):
            self._give_job(worker)
            return
        if isinstance(word, WorkerDone):
            worker.end = word.end
        elif isinstance(word, WorkerFailed):
            self._fail(f"worker {worker.job.worker} failed: {word.words}")
        else:
            assert isinstance(word, WorkerReady), word
            worker.ready = True
        self._changed.set()

    def _give_job(self, worker: _WorkerProcess) -> None:
        with suppress(OSError):  # it is gone: its closed pipe says so in a moment
            worker.pipe.send(worker.job)
            worker.awake = True
            if self._stopped:
                worker.pipe.send(StopWorker())

    def _take_batch(self, worker: _WorkerProcess, batch: Batch) -> None:
        for result in batch.results:
            self._sink(result)
        for name, count in batch.chunks.items():
            self._observer.add_chunks(name, count)
        if batch.lag_ms is not None:
            self._observer.set_lag(worker.job.worker, batch.lag_ms)
        worker.in_flight = batch.in_flight
        for name in batch.in_flight:
            count = sum(each.in_flight.get(name, 0) for each in self._workers)
            self._observer.set_in_flight(name, count)

    def _gone(self, worker: _WorkerProcess) -> None:
        """The pipe has closed: after its last message, or because the worker died."""
        asyncio.get_running_loop().remove_reader(worker.pipe.fileno())
        worker.gone = True
        if worker.end is None and not self._problem:
            worker.process.join(LAST_WORDS_TIMEOUT_S)
            self._fail(
                f"worker {worker.job.worker} died ({_cause(worker.process.exitcode)}); "
                "what it had not yet handed over is lost, and the others were stopped"
            )
        self._changed.set()

    def _fail(self, problem: str) -> None:
        self._problem = self._problem or problem
        self.stop()

    def _tell_all(self, word: Go | Follow | StopWorker) -> None:
        for worker in self._workers:
            if worker.awake and not worker.gone and worker.end is None:
                with suppress(OSError):  # it is gone: its closed pipe says so in a moment
                    worker.pipe.send(word)

    async def _end(self) -> None:
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            if not worker.gone:
                loop.remove_reader(worker.pipe.fileno())
            worker.pipe.close()
        for worker in self._workers:
            await asyncio.to_thread(worker.process.join, LAST_WORDS_TIMEOUT_S)
            if worker.process.is_alive():
                worker.process.kill()
                await asyncio.to_thread(worker.process.join)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Start a process with SIGINT blocked: Ctrl-C would end it while it imports.

    A signal that arrives meanwhile is handled at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "its pipe closed"
    if exit_code < 0:
        return f"signal {-exit_code}, {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
