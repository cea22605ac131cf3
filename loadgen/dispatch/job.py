"""One process's share of a run: opens its clients, dispatches, measures its own lag."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from loadgen.clients.client import ClientSpec
from loadgen.clients.open_client import open_client
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.dispatch.dispatcher import Dispatcher
from loadgen.dispatch.loop_lag import LoopLagMeter
from loadgen.records.result import Result
from loadgen.records.run_record import LoopLag, SendSummary


class ProgressObserver(Protocol):
    """Receives progress in the event loop of the run's own process; returns quickly, never raises.

    The `set_` methods are called a few times a second, the others at each event.
    """

    def add_chunks(self, traffic_class: str, count: int) -> None:
        """`count` more chunks of this class have arrived."""
        ...

    def add_result(self, result: Result) -> None:
        """A request has ended."""
        ...

    def set_in_flight(self, traffic_class: str, count: int) -> None:
        """`count` requests of this class are under way."""
        ...

    def set_lag(self, worker: int, lag_ms: float) -> None:
        """The recent lag of the worker's event loop, in wall ms."""
        ...


TOLD_EVERY_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The share of one of `workers` processes: its part of each class. Picklable."""

    traffics: Sequence[tuple[DispatchedClass, ClientSpec]]
    worker: int = 0
    workers: int = 1

    def split(self, workers: int) -> list["Job"]:
        """Split into `workers` jobs, together this one; raises OptionError for too many."""
        if workers == 1:
            return [self]
        return [
            Job(
                traffics=[(traffic.part(at, workers), spec) for traffic, spec in self.traffics],
                worker=at,
                workers=workers,
            )
            for at in range(workers)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """Summaries of a job by class, and the lag of its event loop."""

    sending: Mapping[str, SendSummary]
    lag: LoopLag


async def do_job(
    job: Job,
    *,
    origin_ns: Callable[[], Awaitable[int]],
    sink: Callable[[Result], None],
    observer: ProgressObserver,
    on_dispatcher: Callable[[Dispatcher], None],
) -> JobEnd:
    """Open the clients, await the run's start, and dispatch.

    `origin_ns` is called when the clients are open, and returns the start by the system's monotonic
    clock; `on_dispatcher` gets the dispatcher before it runs, to stop it by.
    """
    async with AsyncExitStack() as stack:
        traffics = []
        for traffic, spec in job.traffics:
            opened = open_client(spec, on_chunks=partial(observer.add_chunks, traffic.name))
            traffics.append((traffic, await stack.enter_async_context(opened)))
        dispatcher = Dispatcher(traffics, sink=sink, origin_ns=await origin_ns(), worker=job.worker)
        on_dispatcher(dispatcher)
        meter = LoopLagMeter()
        with meter:
            telling = asyncio.create_task(_tell(dispatcher, meter, observer, job.worker))
            try:
                sending = await dispatcher.run()
            finally:
                telling.cancel()
        return JobEnd(sending=sending, lag=meter.found(job.worker))


async def _tell(
    dispatcher: Dispatcher, meter: LoopLagMeter, observer: ProgressObserver, worker: int
) -> None:
    while True:
        await asyncio.sleep(TOLD_EVERY_S)
        observer.set_lag(worker, meter.lately_ms())
        for name, count in dispatcher.in_flight.items():
            observer.set_in_flight(name, count)
