"""Dispatches one traffic class: begins sessions, sends calls, keeps count."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.clients.client import Reply, RequestClient
from loadgen.dispatch.dispatched_class import DispatchedClass
from loadgen.dispatch.pace import Pace
from loadgen.dispatch.sessions import ServedHistory, SessionProgress, SessionSource
from loadgen.dispatch.timetable import Timetable
from loadgen.records.request import Request, Session
from loadgen.records.result import Result
from loadgen.records.run_record import SendSummary

Exchange = tuple[Request, Reply]


@dataclass(slots=True, eq=False)
class _Flight:
    """A session under way."""

    progress: SessionProgress
    history: ServedHistory | None


@dataclass(slots=True, eq=False)
class _Sending:
    """A due call, under way once `began`: a task cancelled before has sent nothing.

    Times are steady ns since the run's start (see `Pace`).
    """

    flight: _Flight
    position: int
    intended_ns: int
    began: bool = field(default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderContext:
    """State shared by the senders of one dispatcher with one `pace`.

    `origin_ns` is the run's start by `now_ns`; the timetable is in steady ns since then. `on_over`
    is called when a sender may have become `over`.
    """

    timetable: Timetable
    pace: Pace
    now_ns: Callable[[], int]
    origin_ns: int
    worker: int
    sink: Callable[[Result], None]
    on_fault: Callable[[BaseException], None]
    on_over: Callable[[], None]


class Sender:
    """Dispatches one class, in callbacks of one event loop.

    Invariant: `in_flight` <= `max_in_flight`, and sessions begin in order.
    """

    def __init__(
        self, traffic: DispatchedClass, *, client: RequestClient, context: SenderContext
    ) -> None:
        self._traffic = traffic
        self._client = client
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._source = SessionSource(traffic)
        self._stopped = False
        self._begun = 0  # sessions
        self._begun_requests = 0
        self._sent = 0  # requests
        self._held_back = 0
        self._planned_histories = 0
        self._room_again_ns = -1  # what was due before this and had not begun was held back
        self._flights = 0
        self._waiting: deque[_Sending] = deque()  # calls of sessions under way, for want of room
        self._tasks: dict[asyncio.Task[Exchange], _Sending] = {}
        self._timer_ns: int | None = None
        self._ahead: Session | None = None

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._tasks)

    @property
    def over(self) -> bool:
        """Whether no request is under way and no more will begin."""
        if self._tasks:
            return False
        return self._stopped or (self._flights == 0 and self._exhausted())

    def start(self) -> None:
        """Begin due sessions, and schedule the rest."""
        self._advance()

    def stop(self) -> None:
        """Stop sending and abort requests under way. Idempotent."""
        self._stopped = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def abort(self) -> None:
        """Stop, and wait for the aborted requests."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def summary(self) -> SendSummary:
        """Counts of the dispatch."""
        return SendSummary(
            held_back=self._held_back,
            unsent=self._begun_requests + self._source.requests_from(self._begun) - self._sent,
            interrupted=self._stopped,
            repeated=max(0, self._begun - self._source.part_sessions),
            planned_histories=self._planned_histories,
        )

    def _elapsed_ns(self) -> int:
        """Steady ns since the run's start."""
        return self._context.pace.steady_ns(self._context.now_ns() - self._context.origin_ns)

    def _exhausted(self) -> bool:
        if self._source.sessions_max is not None and self._begun >= self._source.sessions_max:
            return True
        ends_ns = self._traffic.pacer.ends_ns
        return ends_ns is not None and self._paced(self._elapsed_ns()) >= ends_ns

    def _paced(self, elapsed_ns: int) -> int:
        return int((elapsed_ns - self._traffic.start_ns) / self._traffic.wall_per_pace)

    def _advance(self) -> None:
        """Begin every due session within the limit, and set the timer for the next."""
        while not self._stopped and not self._waiting and not self._exhausted():
            elapsed_ns = self._elapsed_ns()
            due_ns = self._due_ns(elapsed_ns)
            if due_ns is None:
                break
            if due_ns > elapsed_ns:
                self._wake_at(min(due_ns, self._end_ns()))
                break
            if not self._has_room():
                break
            self._held_back += due_ns < self._room_again_ns
            self._begin(due_ns)
        if self._ahead is None and not self._stopped and not self._exhausted():
            self._ahead = self._source.session(self._begun)  # while there is time

    def _end_ns(self) -> float:
        """The class's end, in steady ns since the run's start; inf without one."""
        ends_ns = self._traffic.pacer.ends_ns
        if ends_ns is None:
            return math.inf
        return self._traffic.start_ns + math.ceil(ends_ns * self._traffic.wall_per_pace) + 1

    def _due_ns(self, elapsed_ns: int) -> int | None:
        """The next session's time, in steady ns since the run's start."""
        traffic = self._traffic
        if elapsed_ns < traffic.start_ns:
            return traffic.start_ns  # and asked again then
        due_ns = traffic.pacer.pace(
            elapsed_ns=self._paced(elapsed_ns), sent=self._begun, in_flight=self._flights
        )
        if due_ns is None:
            return None
        return traffic.start_ns + int(due_ns * traffic.wall_per_pace)

    def _wake_at(self, due_ns: float) -> None:
        if self._timer_ns is not None and self._elapsed_ns() < self._timer_ns <= due_ns:
            return  # it will be asked again before
        self._timer_ns = int(due_ns)  # the end alone may be inf, and is then not the earlier one
        self._context.timetable.at(self._timer_ns, self._woken)

    def _woken(self) -> None:
        self._timer_ns = None
        self._advance()
        self._see_over()

    def _has_room(self) -> bool:
        return len(self._tasks) < self._traffic.max_in_flight

    def _begin(self, due_ns: int) -> None:
        session = self._ahead or self._source.session(self._begun)
        self._ahead = None
        self._begun += 1
        self._begun_requests += len(session.calls)
        self._flights += 1
        history = ServedHistory(session) if self._traffic.served_history else None
        flight = _Flight(SessionProgress(session), history)
        for position in flight.progress.first():
            self._call_due(_Sending(flight, position, due_ns))

    def _call_due(self, sending: _Sending) -> None:
        if self._has_room() and not self._waiting:
            self._send(sending)
        else:
            self._held_back += 1
            self._waiting.append(sending)

    def _send(self, sending: _Sending) -> None:
        task = self._loop.create_task(self._exchange(sending))
        self._tasks[task] = sending
        task.add_done_callback(self._ended)

    async def _exchange(self, sending: _Sending) -> Exchange:
        sending.began = True
        self._sent += 1
        request = self._request(sending)
        return request, await self._client.send(request)

    def _request(self, sending: _Sending) -> Request:
        request = sending.flight.progress.session.calls[sending.position].request
        if sending.flight.history is None:
            return request
        request, whole = sending.flight.history.completed(request)
        self._planned_histories += not whole
        return request

    def _ended(self, task: asyncio.Task[Exchange]) -> None:
        sending = self._tasks.pop(task)
        try:
            if task.cancelled():
                if sending.began and not self._stopped:
                    raise RuntimeError("a request was cancelled, and not by us")
            elif (fault := task.exception()) is not None:
                raise fault
            else:
                self._replied(sending, *task.result())
        except Exception as fault:  # noqa: BLE001 - whatever it is, the run ends with it
            self._context.on_fault(fault)
        self._see_over()

    def _replied(self, sending: _Sending, request: Request, reply: Reply) -> None:
        flight, position = sending.flight, sending.position
        result = self._result(request, sending.intended_ns, reply)
        self._context.sink(result)
        if reply.error is not None:
            flight.progress.failed(position)
        else:
            if flight.history is not None:
                flight.history.keep(position, reply)
            ended_ns = self._context.pace.steady_ns(result.ended_ns)
            for waiter, since_ns in flight.progress.ended(position, ended_ns):
                self._think(flight, waiter, since_ns)
        if flight.progress.over:
            self._flights -= 1
        self._give_room()

    def _think(self, flight: _Flight, position: int, since_ns: int) -> None:
        think_ns = flight.progress.session.calls[position].think_ns
        due_ns = since_ns + int(think_ns * self._traffic.wall_per_pace)

        def due() -> None:
            if not self._stopped:
                self._call_due(_Sending(flight, position, due_ns))

        if think_ns == 0:
            due()
        else:
            self._context.timetable.at(due_ns, due)

    def _give_room(self) -> None:
        """Send waiting calls after a request has ended."""
        if self._stopped:
            return
        if len(self._tasks) + 1 >= self._traffic.max_in_flight:
            self._room_again_ns = self._elapsed_ns()
        while self._waiting and self._has_room():
            self._send(self._waiting.popleft())
        self._advance()

    def _see_over(self) -> None:
        if self.over:
            self._context.on_over()

    def _result(self, request: Request, intended_steady_ns: int, reply: Reply) -> Result:
        sent_ns = reply.sent_ns - self._context.origin_ns
        return Result(
            request_id=request.request_id,
            traffic_class=request.traffic_class,
            session_id=request.session_id,
            turn=request.turn,
            worker=self._context.worker,
            # A rounding must not make it due after it was sent.
            intended_ns=min(sent_ns, self._context.pace.wall_ns(intended_steady_ns)),
            sent_ns=sent_ns,
            ended_ns=reply.ended_ns - self._context.origin_ns,
            chunk_ns=reply.chunk_ns - self._context.origin_ns,
            asked_input_tokens=request.input_tokens,
            asked_output_tokens=request.output_tokens,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            error=reply.error,
            message=reply.message,
            text=reply.text,
            streamed_ids=None if reply.token_ids is None else len(reply.token_ids),
            resent=reply.resent,
        )
