"""Sends every traffic class at its pacer's times; a sink gets each result as it ends.

The only place of the load generator that waits for time.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from loadgen.clients.client import RequestClient
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.dispatch.pace import Pace
from loadgen.dispatch.sender import Sender, SenderContext
from loadgen.dispatch.timetable import Action, DispatchTimer, LoopTimer, PacedTimer, Timetable
from loadgen.records.result import Result
from loadgen.records.run_record import SendSummary


class Dispatcher:
    """One run of all classes in one event loop; use once.

    Invariants: at most each class's `max_in_flight` requests are under way; when `run` returns, the
    sink has exactly one result of every request sent.
    """

    def __init__(
        self,
        traffics: Sequence[tuple[DispatchedClass, RequestClient]],
        *,
        sink: Callable[[Result], None],
        origin_ns: int | None = None,
        worker: int = 0,
        now_ns: Callable[[], int] = time.monotonic_ns,
        timer: Callable[[Action], DispatchTimer] = LoopTimer,
    ) -> None:
        """`origin_ns` is the run's start by `now_ns`; None: when `run` is called."""
        self._traffics = traffics
        self._sink = sink
        self._origin_ns = origin_ns
        self._worker = worker
        self._now_ns = now_ns
        self._timer = timer
        self._senders: dict[str, Sender] = {}
        self._pace = Pace()  # of the server's clock
        self._steady_per_wall = 1.0
        self._timetables: list[Timetable] = []
        self._began_ns: int | None = None
        self._stopped = False
        self._faults: list[BaseException] = []
        self._over: asyncio.Future[None] | None = None

    @property
    def in_flight(self) -> Mapping[str, int]:
        """Requests under way, by class."""
        return {name: sender.in_flight for name, sender in self._senders.items()}

    def follow(self, steady_per_wall: float) -> None:
        """Set the speed of the server's clock, relative to the run's start."""
        self._steady_per_wall = steady_per_wall
        if self._began_ns is not None:
            at_wall_ns = max(0, self._now_ns() - self._began_ns)
            self._pace.change(steady_per_wall, at_wall_ns=at_wall_ns)
            for timetable in self._timetables:
                timetable.rearm()

    def stop(self) -> None:
        """Stop sending and abort requests under way; `run` returns soon after. Idempotent."""
        self._stopped = True
        for sender in self._senders.values():
            sender.stop()
        self._look()

    async def run(self) -> Mapping[str, SendSummary]:
        """Send everything and wait for every reply, or until stopped; returns summaries by class.

        An exception of a client or the sink ends the run and is raised in a group.
        """
        self._over = asyncio.get_running_loop().create_future()
        origin_ns = self._now_ns() if self._origin_ns is None else self._origin_ns
        self._began_ns = origin_ns
        if self._steady_per_wall != 1.0:
            self._pace.change(self._steady_per_wall, at_wall_ns=0)
        try:
            server, wall = self._context(self._pace, origin_ns), self._context(Pace(), origin_ns)
            for traffic, client in self._traffics:
                context = server if traffic.follows_server else wall
                self._senders[traffic.name] = Sender(traffic, client=client, context=context)
            for sender in self._senders.values():
                if self._stopped:
                    sender.stop()
                else:
                    sender.start()
            self._look()
            await self._over
            summaries = {name: sender.summary() for name, sender in self._senders.items()}
        finally:
            for timetable in self._timetables:
                timetable.close()
            for sender in self._senders.values():
                await sender.abort()
        if self._faults:
            raise BaseExceptionGroup("the dispatch failed", self._faults)
        return summaries

    def _context(self, pace: Pace, origin_ns: int) -> SenderContext:
        timetable = Timetable(
            now_ns=lambda: pace.steady_ns(self._now_ns() - origin_ns),
            make_timer=lambda action: PacedTimer(self._timer(action), pace, origin_ns),
            on_fault=self._fault,
        )
        self._timetables.append(timetable)
        return SenderContext(
            timetable=timetable,
            pace=pace,
            now_ns=self._now_ns,
            origin_ns=origin_ns,
            worker=self._worker,
            sink=self._sink,
            on_fault=self._fault,
            on_over=self._look,
        )

    def _fault(self, fault: BaseException) -> None:
        self._faults.append(fault)
        self.stop()

    def _look(self) -> None:
        if self._over is None or self._over.done() or not self._senders:
            return
        if all(sender.over for sender in self._senders.values()):
            self._over.set_result(None)
