"""The parent's side of `--workers`: starts the processes, gathers what they send, and ends them.

Results come in batches and out of order between workers. A worker that dies ends the attack: the
others are stopped, what came is kept, and the problem is said in one line.
"""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from loadgen.attack.job import Job, JobEnd
from loadgen.attack.spectator import Spectator
from loadgen.attack.worker import Batch, Done, Failed, Go, Ready, Stop, work
from loadgen.records.result import Result

# From the word to go until the first request: by then every worker has read it.
HEAD_START_NS: Final = 50_000_000
LAST_WORDS_TIMEOUT_S: Final = 10.0


@dataclass(slots=True, eq=False)
class _Worker:
    job: Job
    process: SpawnProcess
    pipe: Connection
    in_flight: dict[str, int] = field(default_factory=dict)
    ready: bool = False
    end: JobEnd | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersEnd:
    """What the workers came to. `ends` has no entry for one that died; `problem` then says so."""

    ends: Sequence[JobEnd] = field(default=())
    problem: str = ""


class Workers:
    """Does one job in several processes; use it once, as a context that leaves none behind."""

    def __init__(
        self, jobs: Sequence[Job], *, sink: Callable[[Result], None], spectator: Spectator
    ) -> None:
        self._jobs = jobs
        self._sink = sink
        self._spectator = spectator
        self._workers: list[_Worker] = []
        self._problem = ""
        self._stopped = False
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def process_ids(self) -> list[int | None]:
        """The processes' ids, in the order of the workers."""
        return [worker.process.pid for worker in self._workers]

    async def run(self, on_origin: Callable[[int], None]) -> WorkersEnd:
        """Start all, attack, and wait for their ends; `on_origin` is told the run's start.

        An exception of the sink or the spectator ends the attack and is raised.
        """
        try:
            self._start()
            await self._until(lambda: all(each.ready or each.gone for each in self._workers))
            if not self._problem and not self._stopped:
                origin_ns = time.monotonic_ns() + HEAD_START_NS
                on_origin(origin_ns)
                self._tell_all(Go(origin_ns))
            await self._until(lambda: all(each.end or each.gone for each in self._workers))
        finally:
            await self._end()
        if self._fault is not None:
            raise self._fault
        ends = [each.end for each in self._workers if each.end is not None]
        return WorkersEnd(ends=ends, problem=self._problem)

    def stop(self) -> None:
        """Send no more, and abort what is under way. May be repeated."""
        self._stopped = True
        self._tell_all(Stop())

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        loop = asyncio.get_running_loop()
        for job in self._jobs:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work, args=(theirs, job), name=f"loadgen worker {job.worker}", daemon=True
            )
            worker = _Worker(job, process, ours)
            self._workers.append(worker)
            process.start()
            theirs.close()  # so that its end is seen here
            loop.add_reader(ours.fileno(), partial(self._heard, worker))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _heard(self, worker: _Worker) -> None:
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

    def _take(self, worker: _Worker, word: object) -> None:
        if isinstance(word, Batch):
            self._take_batch(worker, word)
            return
        if isinstance(word, Done):
            worker.end = word.end
        elif isinstance(word, Failed):
            self._fail(f"worker {worker.job.worker} failed: {word.words}")
        else:
            assert isinstance(word, Ready), word
            worker.ready = True
        self._changed.set()

    def _take_batch(self, worker: _Worker, batch: Batch) -> None:
        for result in batch.results:
            self._sink(result)
        for name, count in batch.chunks.items():
            self._spectator.add_chunks(name, count)
        if batch.lag_ms is not None:
            self._spectator.set_lag(worker.job.worker, batch.lag_ms)
        worker.in_flight = batch.in_flight
        for name in batch.in_flight:
            count = sum(each.in_flight.get(name, 0) for each in self._workers)
            self._spectator.set_in_flight(name, count)

    def _gone(self, worker: _Worker) -> None:
        """The pipe has closed: as it should after its last word, or because the worker died."""
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

    def _tell_all(self, word: Go | Stop) -> None:
        for worker in self._workers:
            if not worker.gone and worker.end is None:
                with suppress(OSError):  # it is gone: its closed pipe says so in a moment
                    worker.pipe.send(word)

    async def _end(self) -> None:
        """Leave no process behind: those that do not end by themselves are ended."""
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


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "its pipe closed"
    if exit_code < 0:
        return f"signal {-exit_code}, {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
