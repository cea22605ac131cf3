"""One run from options to record: asks the server, dispatches, keeps results.

A thin shell around the pure parts; reports are made from the record, elsewhere.
"""

import asyncio
import gc
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final

import aiohttp

from loadgen.clients.question import open_session
from loadgen.clients.server_clock import read_server
from loadgen.dispatch.dispatcher import Dispatcher
from loadgen.dispatch.job import do_job
from loadgen.dispatch.pace import Pace
from loadgen.dispatch.workers import HEAD_START_NS as WORKERS_HEAD_START_NS
from loadgen.dispatch.workers import Workers, WorkersEnd
from loadgen.errors import LoadError, ServerError
from loadgen.live.live_counts import LiveCounts
from loadgen.prompts.recount import recount
from loadgen.records.result import Result
from loadgen.records.results_file import ResultsWriter
from loadgen.records.run_record import (
    ClassHeader,
    Recount,
    RunEnd,
    RunRecord,
    SendSummary,
)
from loadgen.records.server_reading import FOLLOWING_CLOCK, ServerReading
from loadgen.records.steady_time import ClockEpoch, steady_results
from loadgen.runs.clock_watch import EVERY_WALL_S, ClockWatch
from loadgen.runs.interruption import stopped_by_signals
from loadgen.runs.options import RunOptions
from loadgen.runs.preparation import Prepared, prepare
from loadgen.runs.unreachable import UnreachableWatch

HEAD_START_NS: Final = 10_000_000
"""From the start to the first request, in this process: by then the dispatcher waits for it."""

STEPPED: Final = (
    "one request was sent before the run for all of --warmup 0: the server counts idle time, and "
    "its energy, when it works again"
)

FREEZE_EVERY: Final = 1_000
"""Kept results are frozen out of garbage collection in lots of this many: a pass over 300,000 stops
the process for 0.17 s, over one lot for at most 7 ms.
"""


async def run(
    options: RunOptions, *, command: str, key: str = "", live: LiveCounts | None = None
) -> RunRecord:
    """Do the run. Ctrl-C or SIGTERM ends the sending, noted in the record; a second ends the
    program.

    `key` is the client's, and in no record. With `options.results` every line is in the file at
    once. Raises LoadError when nothing could be sent; later failures of the server or a worker are
    in the record.
    """
    live = LiveCounts() if live is None else live
    with ExitStack() as stack:
        writer = None
        if options.results is not None:  # first: a path that cannot be written costs no run
            writer = stack.enter_context(ResultsWriter(options.results))
        async with open_session(key=key, ca=options.server.ca) as session:
            prepared = await prepare(session, options, command=command, key=key, live=live)
            return await _Run(options, prepared, session=session, live=live, writer=writer).run()


class _Run:
    """A prepared run: its results as they come, and its end."""

    def __init__(
        self,
        options: RunOptions,
        prepared: Prepared,
        *,
        session: aiohttp.ClientSession,
        live: LiveCounts,
        writer: ResultsWriter | None,
    ) -> None:
        self._options = options
        self._prepared = prepared
        self._header = prepared.header
        self._session = session
        self._live = live
        self._writer = writer
        self._results: list[Result] = []
        self._skipped: ServerReading | None = None
        self._skipping: asyncio.Task[None] | None = None
        self._dispatching: Dispatcher | Workers | None = None
        self._stopped = False
        self._watch = UnreachableWatch()
        self._problem = ""
        self._began_ns: int | None = None
        self._pace = Pace()
        self._clock = ClockWatch(session, options.server.url, self._dilated)
        self._clock_task: asyncio.Task[None] | None = None
        self._steady_per_wall = 1.0

    async def run(self) -> RunRecord:
        with stopped_by_signals(self._interrupt):
            done = await self._dispatch()
            wall_s = self._wall_s()
            if self._began_ns is None:  # interrupted before it began
                self._write_header()
            await self._end_skipping()
            end = await self._end(done, wall_s)
        if self._writer is not None:
            self._writer.end(end)
        results = steady_results(self._results, end.epochs, self._header.start.dilation)
        return RunRecord(header=self._header, results=results, end=end, skipped=self._skipped)

    def _write_header(self) -> None:
        if self._writer is not None:
            self._writer.header(self._header)

    def _wall_s(self) -> float:
        """Duration of the dispatch; 0 if interrupted before."""
        if self._began_ns is None:
            return 0.0
        return max(0, time.monotonic_ns() - self._began_ns) / 1e9

    async def _dispatch(self) -> WorkersEnd:
        """Send everything, in this process or in workers."""
        jobs = self._prepared.jobs
        # What is there by now stays: without this the collector would go through all of it again
        # and again, for milliseconds each time, while latencies are measured.
        gc.collect()  # what is garbage would stay, too
        gc.freeze()
        try:
            if len(jobs) == 1:
                end = await do_job(
                    jobs[0],
                    origin_ns=partial(self._begin, HEAD_START_NS),
                    sink=self._keep,
                    observer=self._live,
                    on_dispatcher=self._dispatches,
                )
                return WorkersEnd(ends=[end])
            pool = Workers(jobs, sink=self._keep, observer=self._live)
            self._dispatches(pool)
            return await pool.run(partial(self._begin, WORKERS_HEAD_START_NS))
        except BaseExceptionGroup as group:
            refusals, faults = group.split(LoadError)
            if faults is not None or refusals is None:
                raise
            raise refusals.exceptions[0] from group  # a results file on a disk that is full
        finally:
            gc.unfreeze()

    async def _begin(self, head_start_ns: int) -> int:
        """Read the server's meters and begin at once. Returns the start.

        A server that meters energy and has idled is sent one request first.
        """
        before = self._header.start
        idled = self._options.warmup == 0 or len(self._prepared.jobs) > 1  # while workers began
        if before.facility_joules is not None and idled:
            await self._prepared.step()
            if self._options.warmup == 0:
                self._header = replace(self._header, notes=(*self._header.notes, STEPPED))
        start = await read_server(self._session, self._options.server.url, must_answer=True)
        if start.dilation != before.dilation and not _follows_load(start):
            reason = f"its clock's dilation changed from {before.dilation} to {start.dilation}"
            raise ServerError(
                url=self._options.server.url, reason=f"{reason} while the run was prepared"
            )
        # What is sent was planned at the dilation of before; a change is followed from it.
        self._header = replace(self._header, start=replace(start, dilation=before.dilation))
        self._write_header()
        self._began_ns = origin_ns = time.monotonic_ns() + head_start_ns
        self._live.begin(self._header, origin_ns)
        if _follows_load(start) and start.dilation is not None:
            self._dilated(start.dilation)
            self._clock_task = asyncio.create_task(self._clock.follow())
        if self._options.skip_s > 0:
            self._skipping = asyncio.create_task(self._read_after_skip(origin_ns))
        return origin_ns

    async def _end_skipping(self) -> None:
        """End the wait for the skipped part's end; raises its write error."""
        if self._skipping is not None:
            self._skipping.cancel()
            with suppress(asyncio.CancelledError):
                await self._skipping

    async def _read_after_skip(self, origin_ns: int) -> None:
        """Read the server's meters when the measured part begins."""
        skip_ns = self._header.skip_ns
        while (left_ns := origin_ns + self._pace.wall_ns(skip_ns) - time.monotonic_ns()) > 0:
            await asyncio.sleep(min(left_ns / 1e9, EVERY_WALL_S))  # the pace may change
        self._skipped = await self._reading()
        if self._writer is not None:
            self._writer.skipped(self._skipped)

    def _keep(self, result: Result) -> None:
        self._results.append(result)
        if len(self._results) % FREEZE_EVERY == 0:
            gc.collect(1)  # garbage would be frozen with them, and stay
            gc.freeze()
        if self._writer is not None:
            self._writer.result(result)
        self._live.add_result(result)
        if not self._problem:
            chunks = sum(counts.chunks for counts in self._live.classes.values())
            self._problem = self._watch.gone(result, chunks=chunks)
            if self._problem:
                self._interrupt()

    def _dispatches(self, dispatching: Dispatcher | Workers) -> None:
        self._dispatching = dispatching
        dispatching.follow(self._steady_per_wall)
        if self._stopped:
            dispatching.stop()

    def _dilated(self, dilation: float) -> None:
        """Follow the server's clock: an emulated second now takes `dilation` wall seconds."""
        assert self._began_ns is not None
        assert self._header.start.dilation is not None
        self._steady_per_wall = self._header.start.dilation / dilation
        at_wall_ns = max(0, time.monotonic_ns() - self._began_ns)
        self._pace.change(self._steady_per_wall, at_wall_ns=at_wall_ns)
        self._live.dilation = dilation
        if self._dispatching is not None:
            self._dispatching.follow(self._steady_per_wall)

    def _interrupt(self) -> None:
        self._stopped = True
        if self._dispatching is not None:
            self._dispatching.stop()

    async def _end(self, done: WorkersEnd, wall_s: float) -> RunEnd:
        self._live.say("reading the server's meters")
        reading = await self._reading()
        epochs = await self._end_following()
        self._live.say("counting tokens again")
        return RunEnd(
            end=reading,
            wall_s=wall_s,
            sending={
                each.name: _class_sending(each, done, self._results)
                for each in self._header.classes
            },
            lags=tuple(end.lag for end in done.ends),
            recount=await self._recounted(),
            problem=done.problem or self._problem,
            epochs=epochs,
        )

    async def _end_following(self) -> tuple[ClockEpoch, ...]:
        """Stop following the clock; returns the run's epochs."""
        if self._clock_task is None or self._began_ns is None:
            return ()
        self._clock_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._clock_task
        await self._clock.look()
        return self._clock.epochs(self._began_ns)

    async def _reading(self) -> ServerReading:
        """Read the server's meters; a failure is a note in the report."""
        try:
            return await read_server(self._session, self._options.server.url)
        except ServerError as error:
            return ServerReading(problem=error.reason)

    async def _recounted(self) -> Recount:
        if self._options.recount == 0:
            return Recount()
        try:
            return await recount(
                self._results, self._prepared.tokenizer, limit=self._options.recount
            )
        except LoadError as error:
            return Recount(problem=str(error))


def _follows_load(reading: ServerReading) -> bool:
    return reading.info.get("clock") == FOLLOWING_CLOCK


def _class_sending(header: ClassHeader, done: WorkersEnd, results: Sequence[Result]) -> SendSummary:
    parts = [end.sending[header.name] for end in done.ends]
    unsent = sum(part.unsent for part in parts)
    if done.problem:  # what a worker that died has sent is unknown: what is missing counts
        kept = sum(result.traffic_class == header.name for result in results)
        unsent = 0 if header.requests is None else max(0, header.requests - kept)
    return SendSummary(
        held_back=sum(part.held_back for part in parts),
        unsent=unsent,
        interrupted=bool(done.problem) or any(part.interrupted for part in parts),
        repeated=sum(part.repeated for part in parts),
        planned_histories=sum(part.planned_histories for part in parts),
    )
