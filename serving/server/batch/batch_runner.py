"""Runs batches: reads their files, sends their requests, writes their answers, ends them.

Requests go through admission as batch work, so interactive requests enter first, and as many are
under way as the engine has seats. Batches with the nearest deadline go first. What is refused for
the load or the server's state is sent again; what is answered is in the journal before it counts.
A batch outlives the server: what was under way at its end is sent again by the next one.

Where a policy of day and night decides, `share` says when requests that are not due may run.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from serving.policy.admission.work import Client
from serving.policy.day_night.night_work import ANY_TIME, BatchDemand, NightShare, is_due
from serving.server.batch.answer_pace import AnswerPace
from serving.server.batch.batch_record import (
    BatchEvent,
    BatchStatus,
    IllegalBatchEvent,
    StoredBatch,
)
from serving.server.batch.batch_store import BatchStore, new_id
from serving.server.batch.input_file import BatchRequest, InputFile, WrongInput, read_input
from serving.server.batch.live_batch import LiveBatch, SentRequest
from serving.server.gateway.http.http_errors import HttpError
from serving.server.gateway.http.inner_request import InnerAnswer, InnerRequest
from serving.telemetry.batch_metrics import BatchMetrics

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

UNDER_WAY_MAX: Final = 4_096
"""Requests at once, at most. Assumed: each is a task and a body in the server's process."""

TRIES_MAX: Final = 3
"""Of a request that the server fails at. Assumed."""

_LOOK_S: Final = 0.5
"""Wall seconds between looks at deadlines and seats; assumed: nothing to a job of hours."""

_DISK_AGAIN_S: Final = 10.0
"""Wall seconds until an answer that could not be written is asked for again. Assumed."""

_RETRY_S: Final = 2.0
"""Wall seconds until more is asked of a server that failed at a request. Assumed."""

_STUCK_S: Final = 600.0
"""Wall seconds without an answer after which a batch that may run holds no group. Assumed."""

_TOLD: Final = {
    BatchEvent.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchEvent.PUBLISHED: (
        "batch_cancelled",
        "This request was not executed before the batch was cancelled.",
    ),
}

_FAILED: Final = HttpError(
    HTTPStatus.INTERNAL_SERVER_ERROR, "internal_server_error", "the server failed at this request"
).body("")

Make = Callable[[str, BatchRequest, Client, str], InnerRequest]
"""The request of an endpoint, for a client, with an id."""


class BatchRunner:
    """The batches of one server, in the event loop of its app.

    `make` and `ask` are the gateway's; `client_of` is the client whose key has a name, None when it
    has gone: its batches then wait. `seats` are those of ranks that are up.
    """

    def __init__(
        self,
        store: BatchStore,
        *,
        make: Make,
        ask: Callable[[InnerRequest], Awaitable[InnerAnswer]],
        client_of: Callable[[str], Client | None],
        seats: Callable[[], int],
        body_bytes_max: int,
        metrics: BatchMetrics,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._make = make
        self._ask = ask
        self._client_of = client_of
        self._seats = seats
        self._body_bytes_max = body_bytes_max
        self._metrics = metrics
        self._wall_s = wall_s
        self._pace = AnswerPace()
        self._share = ANY_TIME
        self._arrived = 0  # sequences of requests that are not under way any more
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._live = {
            batch.id: LiveBatch(batch)
            for batch in store.batches.values()
            if not batch.status.is_over
        }
        metrics.follow(
            batches=self._batches_in,
            pending=lambda: sum(len(live.pending) for live in self._live.values()),
            under_way=lambda: sum(len(live.under_way) for live in self._live.values()),
            held_groups=lambda: self._share.held_groups,
        )

    # For those who ask for batches.

    def submit(self, batch: StoredBatch) -> None:
        """Begin a new batch."""
        self._store.put(batch)
        self._live[batch.id] = LiveBatch(batch)
        self._wake.set()

    def cancel(self, batch: StoredBatch) -> StoredBatch:
        """Begin to cancel it; raises IllegalBatchEvent for one that is over or being finished."""
        live = self._live.get(batch.id)
        if live is None or (live.is_ending and live.record.status is not BatchStatus.CANCELLING):
            raise IllegalBatchEvent(batch.status, BatchEvent.CANCEL)
        self._change(live, BatchEvent.CANCEL)
        self._wake.set()
        return self.seen(live.record)

    def seen(self, batch: StoredBatch) -> StoredBatch:
        """The batch with its present counts."""
        live = self._live.get(batch.id)
        return self._store.batches[batch.id] if live is None else live.counted()

    # For a controller of day and night.

    def demand(self) -> BatchDemand:
        """What is not answered yet."""
        due = sum(self._asking(live) for live, is_due_now in self._by_deadline() if is_due_now)
        left = sum(map(self._asking, self._live.values()))
        sent = [one.inner for live in self._live.values() for one in live.under_way.values()]
        inner = [one for one in sent if one is not None]
        return BatchDemand(
            requests=left,
            due_requests=due,
            seats=self._seats(),
            arrived=self._arrived + sum(one.arrived for one in inner),
            waiting=sum(one.is_at_engine for one in inner),
        )

    def _asking(self, live: LiveBatch) -> int:
        """Its requests that groups are held for: none of a batch whose key has gone, or that may
        run and does not get on, as where a request is beyond its key's limits.
        """
        if self._client_of(live.record.owner) is None:
            return 0
        is_stuck = self._share.may_run and self._wall_s() > live.got_on_s + _STUCK_S
        runs = any(not sent.waits for sent in live.under_way.values())
        return 0 if is_stuck and not runs else live.left

    def share(self, share: NightShare) -> None:
        """Run as the night's policy says, from now on."""
        if share.may_run != self._share.may_run:
            self._wake.set()
            for live in self._live.values():
                live.got_on_s = self._wall_s()
        self._share = share

    # The loop.

    async def start(self) -> None:
        """Go on with what earlier servers left."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End; requests under way are taken back. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        for live in [*self._live.values()]:
            await live.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._look()
            except Exception as error:  # such as a full disk: the others' batches go on later
                logger.exception("batches wait after %s", type(error).__name__)
                await asyncio.sleep(_DISK_AGAIN_S)
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _look(self) -> None:
        for live in [*self._live.values()]:
            if live.work is None and live.work_again_s <= self._wall_s():
                self._advance(live)
        room = min(self._seats(), UNDER_WAY_MAX)
        room -= sum(len(live.under_way) for live in self._live.values())
        now_s = self._wall_s()
        for live, is_due_now in list(self._by_deadline()):
            if not (self._share.may_run or is_due_now):
                live.withdraw(waiting_only=True)
            elif live.pending and live.again_s <= now_s:
                room = self._send(live, room)
        busy = any(live.under_way for live in self._live.values())
        self._pace.run(now_s, is_busy=busy)

    def _by_deadline(self) -> Iterator[tuple[LiveBatch, bool]]:
        """Open batches, the nearest deadline first, and whether each is due."""
        ahead, now_s = 0, self._wall_s()
        batches = [
            live
            for live in self._live.values()
            if live.is_open and not live.record.is_expiring and now_s < live.record.expires_at
        ]
        batches.sort(key=lambda live: (live.record.expires_at, live.record.created_at))
        for live in batches:
            ahead += live.left
            left_s = live.record.expires_at - now_s
            due = is_due(
                left_s=left_s,
                window_s=live.window_s,
                requests_ahead=ahead,
                requests_per_s=self._pace.requests_per_s,
            )
            yield live, due

    def _advance(self, live: LiveBatch) -> None:
        """Do what its status asks for, as far as no request is in the way."""
        status, is_read = live.record.status, live.input is not None
        is_late = self._wall_s() >= live.record.expires_at
        ends = is_late or status is not BatchStatus.IN_PROGRESS
        if status is BatchStatus.VALIDATING or (
            not is_read and live.has_begun and not (live.is_unreadable and ends)
        ):
            self._work(live, self._read(live))
        elif status is BatchStatus.FINALIZING:
            self._work(live, self._publish(live, BatchEvent.PUBLISHED))
        elif status is BatchStatus.CANCELLING:
            self._end_early(live, BatchEvent.PUBLISHED)
        elif live.record.is_expiring or (is_late and (live.left or not is_read)):
            if not live.record.is_expiring:  # so that it does, whatever comes between
                expiring = replace(live.counted(), is_expiring=True)
                self._store.put(expiring)
                live.record = expiring
            self._end_early(live, BatchEvent.EXPIRED)
        elif not live.left:
            self._change(live, BatchEvent.ANSWERED)
            self._work(live, self._publish(live, BatchEvent.PUBLISHED))

    def _end_early(self, live: LiveBatch, event: BatchEvent) -> None:
        live.withdraw(waiting_only=False)
        if not live.under_way:
            self._work(live, self._publish(live, event))

    def _work(self, live: LiveBatch, work: Coroutine[Any, Any, None]) -> None:
        live.work = asyncio.create_task(work)
        live.work.add_done_callback(functools.partial(self._worked, live))

    def _worked(self, live: LiveBatch, task: asyncio.Task[None]) -> None:
        live.work = None
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s is tried again: %s", live.record.id, error, exc_info=error)
            live.work_again_s = self._wall_s() + _DISK_AGAIN_S

    def _change(self, live: LiveBatch, event: BatchEvent) -> None:
        changed = live.counted().after(event, now_s=self._wall_s())
        self._store.put(changed)
        live.record = changed

    # Its beginning and its end.

    async def _read(self, live: LiveBatch) -> None:
        """Check the input of a new batch, and open it."""
        try:
            requests = await asyncio.to_thread(self._read_input, live.record)
            journal = await asyncio.to_thread(self._store.journal, live.record)
        except WrongInput as wrong:
            if live.record.status is BatchStatus.VALIDATING and not live.has_begun:
                self._fail(live, wrong)
            else:
                self._give_up_reading(live, wrong)
            return
        except OSError as error:
            self._give_up_reading(live, error)
            return
        live.open(requests, journal)
        live.got_on_s = self._wall_s()
        if live.record.status is BatchStatus.VALIDATING:
            self._change(live, BatchEvent.VALID)

    def _give_up_reading(self, live: LiveBatch, error: Exception) -> None:
        """Try again later; what is known of its answers is published when it ends."""
        logger.error("the input of %s cannot be read: %s", live.record.id, error)
        live.is_unreadable = True
        live.work_again_s = self._wall_s() + _DISK_AGAIN_S

    def _read_input(self, batch: StoredBatch) -> InputFile:
        path = self._store.content_path(batch.input_file_id)
        is_new = batch.in_progress_at is None  # what was checked was so by the limits of its day
        return read_input(
            path,
            endpoint=batch.endpoint,
            requests_max=self._store.settings.batch_requests if is_new else batch.total,
            body_bytes_max=self._body_bytes_max if is_new else path.stat().st_size,
        )

    async def _publish(self, live: LiveBatch, event: BatchEvent) -> None:
        """End a batch of which no request is under way."""
        live.is_ending = True
        await asyncio.to_thread(self._tell_rest, live, event)
        live.record = live.counted()
        published = await asyncio.to_thread(self._store.publish, live.record)
        over = published.after(event, now_s=self._wall_s())
        self._store.put(over)
        self._forget(live, over)

    def _tell_rest(self, live: LiveBatch, event: BatchEvent) -> None:
        """Write an error for each request that has no line. Blocks."""
        if live.journal is None or live.input is None:
            return
        while live.pending:
            number = live.pending[0]
            code, message = _TOLD[event]
            custom_id = live.input.request(number).custom_id
            live.journal.fail(number, custom_id, code=code, message=message)
            live.pending.popleft()
            self._metrics.answered(code.removeprefix("batch_"))

    def _fail(self, live: LiveBatch, wrong: WrongInput) -> None:
        told = replace(live.record, errors=wrong.errors)
        failed = told.after(BatchEvent.INVALID, now_s=self._wall_s())
        self._store.put(failed)
        self._forget(live, failed)

    def _forget(self, live: LiveBatch, over: StoredBatch) -> None:
        live.record = over
        live.close_files()
        self._store.forget_journal(over)
        del self._live[over.id]
        self._metrics.ended(over.status)

    # Its requests.

    def _send(self, live: LiveBatch, room: int) -> int:
        """Send pending requests of a batch; returns the room that is left."""
        client = self._client_of(live.record.owner)
        while room > 0 and live.pending and client is not None:
            number = live.pending.popleft()
            task = asyncio.create_task(self._answer(live, number, client))
            live.under_way[number] = SentRequest(task)
            task.add_done_callback(functools.partial(self._sent, live, number))
            room -= 1
        return room

    def _sent(self, live: LiveBatch, number: int, task: asyncio.Task[None]) -> None:
        """Note the end of a request's task; without an answer it is pending again."""
        inner = live.under_way.pop(number).inner
        self._arrived += 0 if inner is None else inner.arrived
        self._wake.set()
        assert live.journal is not None
        if not live.journal.has(number):
            live.pending.append(number)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("%s, request %d: %s", live.record.id, number, error, exc_info=error)
            live.again_s = self._wall_s() + _DISK_AGAIN_S

    async def _answer(self, live: LiveBatch, number: int, client: Client) -> None:
        """Send one request, and write its answer if it is one."""
        assert live.input is not None
        assert live.journal is not None
        request = live.input.request(number)
        request_id = new_id("")
        inner = self._make(live.record.endpoint, request, client, request_id)
        live.under_way[number].inner = inner
        answer = await self._answer_of(inner)
        if answer.retry_after_s is not None:
            live.again_s = self._wall_s() + answer.retry_after_s
            self._metrics.answered("put_off")
            return
        if answer.status >= 500:
            live.failures[number] += 1
            if live.failures[number] < TRIES_MAX:
                live.again_s = self._wall_s() + _RETRY_S
                self._metrics.answered("retried")
                return
        live.journal.answer(
            number,
            request.custom_id,
            status=answer.status,
            request_id=request_id,
            body=answer.body,
        )
        live.failures.pop(number, None)
        live.got_on_s = self._wall_s()
        self._pace.answered()
        self._metrics.answered("failed" if answer.status >= 400 else "completed")

    async def _answer_of(self, inner: InnerRequest) -> InnerAnswer:
        try:
            return await self._ask(inner)
        except Exception as error:
            logger.warning("a batch request to %s failed", inner.path, exc_info=error)
            return InnerAnswer(status=HTTPStatus.INTERNAL_SERVER_ERROR, body=_FAILED)

    def _batches_in(self, status: str) -> float:
        return float(sum(live.record.status == status for live in self._live.values()))
