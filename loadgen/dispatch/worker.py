"""A worker process: does its job and reports to its parent, in batches, over a pipe.

It writes an `Awake`, a `WorkerReady`, any number of `Batch`es, and a `WorkerDone` or a
`WorkerFailed`. It reads a `Job` after the first, a `Go` after the second, and `StopWorker` or
`Follow`s at any time after the job. A closed pipe means that the parent is gone: stop.
"""

import asyncio
import gc
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import uvloop

from loadgen.dispatch.dispatcher import Dispatcher
from loadgen.dispatch.job import Job, JobEnd, do_job
from loadgen.records.result import Result

BATCH_EVERY_S: Final = 0.1
BATCH_RESULTS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Go:
    """The run's start by the system's monotonic clock, which all processes share."""

    origin_ns: int


@dataclass(frozen=True, slots=True)
class Follow:
    """The speed of the server's clock relative to the run's start; see `Dispatcher.follow`."""

    steady_per_wall: float


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop sending, and abort requests under way."""


@dataclass(frozen=True, slots=True)
class Awake:
    """The worker is ready for its job, which would block the parent if written earlier."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker waits for its `Go`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events since the last batch."""

    chunks: dict[str, int]
    results: list[Result]
    in_flight: dict[str, int]
    lag_ms: float | None


@dataclass(frozen=True, slots=True)
class WorkerDone:
    """The job's end; nothing follows."""

    end: JobEnd


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker's own failure in words; nothing follows."""

    words: str


def work(pipe: Connection) -> None:
    """Be a worker process. Ctrl-C, blocked until now, is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):  # the parent is gone
        pipe.send(Awake())
        job = pipe.recv()
        assert isinstance(job, Job), job
        uvloop.run(_WorkerSide(pipe, job).run())


class _WorkerSide:
    """The worker's side of the pipe, and the observer of its own job."""

    def __init__(self, pipe: Connection, job: Job) -> None:
        self._pipe = pipe
        self._job = job
        self._chunks: Counter[str] = Counter()
        self._results: list[Result] = []
        self._in_flight: dict[str, int] = {}
        self._lag_ms: float | None = None
        self._stopped = False
        self._dispatcher: Dispatcher | None = None
        self._steady_per_wall = 1.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._go: asyncio.Future[int] = loop.create_future()
        loop.add_reader(self._pipe.fileno(), self._on_message)
        os.set_blocking(self._pipe.fileno(), True)  # uvloop has changed that: a message is whole
        flushing = asyncio.create_task(self._flush_often())
        try:
            end = await do_job(
                self._job,
                origin_ns=self._origin_ns,
                sink=self._keep,
                observer=self,
                on_dispatcher=self._begins,
            )
            flushing.cancel()
            self._flush()
            self._pipe.send(WorkerDone(end))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as fault:  # noqa: BLE001 - the parent ends the run with it
            flushing.cancel()
            self._flush()
            self._pipe.send(WorkerFailed(_words(fault)))
        finally:
            loop.remove_reader(self._pipe.fileno())

    async def _origin_ns(self) -> int:
        self._pipe.send(WorkerReady())
        origin_ns = await self._go
        gc.freeze()  # as in the run's own process: no collection of what stays
        return origin_ns

    def _begins(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        dispatcher.follow(self._steady_per_wall)
        if self._stopped:
            dispatcher.stop()

    def _on_message(self) -> None:
        try:
            word = self._pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            word = StopWorker()
        if isinstance(word, Go):
            self._go.set_result(word.origin_ns)
            return
        if isinstance(word, Follow):
            self._steady_per_wall = word.steady_per_wall
            if self._dispatcher is not None:
                self._dispatcher.follow(word.steady_per_wall)
            return
        self._stopped = True
        if not self._go.done():
            self._go.set_result(0)
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def _keep(self, result: Result) -> None:
        self._results.append(result)
        if len(self._results) >= BATCH_RESULTS_MAX:
            self._flush()

    def _flush(self) -> None:
        batch = Batch(dict(self._chunks), self._results, self._in_flight, self._lag_ms)
        self._chunks, self._results, self._lag_ms = Counter(), [], None
        self._pipe.send(batch)

    async def _flush_often(self) -> None:
        while True:
            await asyncio.sleep(BATCH_EVERY_S)
            self._flush()

    def add_chunks(self, traffic_class: str, count: int) -> None:
        """See `ProgressObserver`."""
        self._chunks[traffic_class] += count

    def add_result(self, result: Result) -> None:
        """Ignored: the parent gets results in batches."""

    def set_in_flight(self, traffic_class: str, count: int) -> None:
        """See `ProgressObserver`."""
        self._in_flight[traffic_class] = count

    def set_lag(self, worker: int, lag_ms: float) -> None:  # noqa: ARG002 - there is one worker here
        """See `ProgressObserver`."""
        self._lag_ms = lag_ms


def _words(fault: BaseException) -> str:
    """A fault (the first of a group) in one line."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return " ".join(f"{type(fault).__name__}: {fault}".split())
