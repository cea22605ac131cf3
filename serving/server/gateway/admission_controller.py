"""Live admission before the engine: `Admission` with a clock, and a permit per admitted request.

For one event loop; it awaits a turn and the end of the last request, nothing else.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import fields
from functools import partial
from typing import Final, Protocol, Self

from prometheus_client import CollectorRegistry

from serving.policy.admission.admission import Admission
from serving.policy.admission.admission_counts import AdmissionCounts
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.entry import Counted, Entry, Outcome, Stage
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Client, Work, WorkClass
from serving.telemetry.gateway_metrics import GatewayMetrics


class Permit:
    """One admitted request. A context manager that leaves at its end, unless it has left: as
    finished, aborted when its task was cancelled, or failed with any other exception.

    `rate` is the rest of its key's limits on entry; `refusal`, if any, is why its declared work was
    kept from the engine; `outcome` is how it left; `prompt_logprobs` counts those that its prompts
    have asked for.
    """

    def __init__(
        self, entry: Entry, rate: RateState, admission: Admission, controller: "AdmissionController"
    ) -> None:
        self.entry = entry
        self.rate = rate
        self._admission = admission
        self._controller = controller
        self._turn = asyncio.Event() if entry.stage is Stage.QUEUED else None
        self._refused: Refused | None = None
        self._cut: Outcome | None = None
        self.refusal: Refused | None = None
        self.outcome: Outcome | None = None
        self.prompt_logprobs = 0

    @property
    def work(self) -> Work:
        """The work on entry."""
        return self.entry.work

    @property
    def has_left(self) -> bool:
        """Whether the request is over."""
        return self.entry.stage is Stage.LEFT

    async def turn(self) -> None:
        """Wait until the engine may have it; only batch work waits.

        Raises Refused when it has waited as long as it may, or admission closes for good;
        CancelledError when batch work has left.
        """
        if self._turn is not None:
            await self._turn.wait()
            if self.has_left and self._refused is None:
                raise asyncio.CancelledError  # nobody waits for its answer
        if self._refused is not None:
            raise self._refused.again(self._refused.rate)  # each of its prompts comes by here

    def give_turn(self, refused: Refused | None = None) -> None:
        """End the waiting, with or without a refusal; called by the controller."""
        self._refused = refused
        if self._turn is not None:
            self._turn.set()

    def declare(self, counted: Counted) -> None:
        """Declare the exact work that the engine is about to get.

        Raises Refused, kept in `refusal`, where the key's limits do not allow it.
        """
        try:
            self._admission.declare(self.entry, counted, self._controller.now_s())
        except Refused as refused:
            self.refusal = refused
            self._controller.metrics.refused(self.entry.work_class, refused.reason)
            raise

    def begin(self, counted: Counted) -> None:
        """Count sequences that the engine has taken."""
        self._admission.begin(self.entry, counted, self._controller.now_s())

    def first_token(self) -> None:
        """Note the first token of a sequence."""
        now_s = self._controller.now_s()
        if self._admission.first_token(self.entry, now_s):
            self._controller.waited(self.entry.work_class, now_s - self.entry.entered_s)

    def made(self, tokens: int) -> None:
        """Count `tokens` more that the engine has made."""
        self._admission.made(self.entry, tokens)

    def end(self, *, made_tokens: int, by_itself: bool) -> None:
        """End a sequence of `made_tokens`; `by_itself` unless it was cut."""
        now_s = self._controller.now_s()
        self._admission.end(self.entry, made_tokens=made_tokens, by_itself=by_itself, now_s=now_s)
        self._controller.look_soon()

    def cut(self, outcome: Outcome) -> None:
        """Note a sequence aborted or failed by the engine; handlers may take it for an answer."""
        self._cut = outcome

    def leave(self, outcome: Outcome) -> None:
        """End the request; idempotent. A cut one has not finished."""
        if self.refusal is not None and outcome is not Outcome.ABORTED:
            outcome = Outcome.REFUSED
        elif outcome is Outcome.FINISHED and self._cut is not None:
            outcome = self._cut
        self.outcome = self.outcome or outcome
        self._left(outcome)
        if self._turn is not None:
            self._turn.set()

    def _left(self, outcome: Outcome) -> None:
        self._controller.leave(self, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.leave(Outcome.FINISHED)
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.leave(Outcome.ABORTED)
        else:
            self.leave(Outcome.FAILED)


current_permit: ContextVar[Permit | None] = ContextVar("ultraserve_permit", default=None)
"""The permit of the request that this task and its children work for."""

_LOOK_WALL_S: Final = 0.5
"""Interval of checks of waiting batch work. Assumed: half a second is nothing to a job of hours."""


class RequestAdmission(Protocol):
    """Admission as those who handle requests see it."""

    async def admit(self, work: Work) -> Permit:
        """Admit `work`, or raise Refused; admitted batch work waits for its turn."""

    def would_refuse(self, client: Client, work_class: WorkClass) -> Refused | None:
        """The refusal of the smallest request, before its body is read, or None; counts nothing."""

    def count_refusal(self, refused: Refused, work_class: WorkClass) -> None:
        """Count a request that was refused before `admit`."""

    def look_soon(self) -> None:
        """Give turns to batch work in the event loop's next turn."""


class AdmissionController:
    """Admits requests and accounts for those inside.

    `capacity` is read at every event; its dilation turns `clock`'s wall seconds into emulated ones.
    Without `metrics` its figures are on no page.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        capacity: Callable[[], Capacity],
        clock: Callable[[], float] = time.monotonic,
        metrics: GatewayMetrics | None = None,
    ) -> None:
        self._capacity = capacity
        self._clock = clock
        self._wall_s = clock()
        self._emulated_s = 0.0
        self._admission = Admission(limits, capacity())
        self._permits: dict[int, Permit] = {}
        self._queued: dict[int, Permit] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._look: asyncio.TimerHandle | None = None
        self._look_soon: asyncio.Handle | None = None
        self.metrics = metrics or GatewayMetrics(CollectorRegistry())
        self.on_wait: Callable[[WorkClass, float], None] = lambda *_: None
        self.on_closed: Callable[[Refused | None], None] = lambda _: None
        self._show(limits)

    # ---- for those who handle requests

    async def admit(self, work: Work) -> Permit:
        """As `enter`."""
        return self.enter(work)

    def enter(self, work: Work) -> Permit:
        """Admit `work`, or raise Refused; admitted batch work waits for its turn."""
        now_s = self.now_s()
        try:
            entry = self._admission.enter(work, now_s)
        except Refused as refused:
            self.metrics.refused(work.work_class, refused.reason)
            raise
        self.metrics.entered(work.work_class)
        permit = Permit(entry, self._admission.rate(work.client, now_s), self._admission, self)
        self._permits[entry.number] = permit
        self._empty.clear()
        if work.work_class is WorkClass.BATCH:
            self._queued[entry.number] = permit
            self.look()
        return permit

    def would_refuse(self, client: Client, work_class: WorkClass) -> Refused | None:
        """The refusal of the smallest request, before its body is read, or None; counts nothing."""
        return self._admission.would_refuse(client, work_class, self.now_s())

    def count_refusal(self, refused: Refused, work_class: WorkClass) -> None:
        """Count a request that was refused before `enter`."""
        self._admission.refuse(refused, work_class)
        self.metrics.refused(work_class, refused.reason)

    # ---- for those who run the server

    def close(self, reason: RefusalReason, message: str, retry_after_s: float) -> None:
        """Refuse new work, `retry_after_s` in wall seconds; admitted work goes on.

        Each request gets its own refusal, like `closed`. A drain also refuses waiting batch work.
        """
        refused = Refused(reason, message, retry_after_s=retry_after_s, rate=RateState())
        self._turn_away(self._admission.close(refused, self.now_s()))
        self.on_closed(self.closed)

    def open(self) -> None:
        """Admit new work again."""
        self._admission.open()
        self.on_closed(None)
        self.look()

    @property
    def closed(self) -> Refused | None:
        """The refusal of new work; None while admission is open."""
        return self._admission.closed

    async def empty(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` wall seconds until every request has left; whether all have."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._empty.is_set()

    @property
    def in_flight(self) -> int:
        """Requests that have entered and not left."""
        return len(self._permits)

    def state(self) -> AdmissionCounts:
        """Counts of this moment."""
        return self._admission.state(self.now_s())

    # ---- for permits

    def now_s(self) -> float:
        """Emulated seconds since construction, at the dilation of each moment."""
        capacity = self._capacity()
        wall_s = self._clock()
        self._emulated_s += (wall_s - self._wall_s) / capacity.dilation
        self._wall_s = wall_s
        self._admission.capacity = capacity
        return self._emulated_s

    def waited(self, work_class: WorkClass, emulated_s: float) -> None:
        """Note the wait of a request that has its first token, and call `on_wait`."""
        self.metrics.waited(work_class, emulated_s)
        self.on_wait(work_class, emulated_s)

    def leave(self, permit: Permit, outcome: Outcome) -> None:
        """See `Permit.leave`."""
        if self._permits.pop(permit.entry.number, None) is None:
            return
        self._queued.pop(permit.entry.number, None)
        self._admission.leave(permit.entry, outcome, self.now_s())
        self._count_left(permit.entry, outcome)
        self.look()

    # ---- batch work's turn

    def look(self) -> None:
        """Give turns to batch work as far as there is room, and refuse what waited too long."""
        if not self._queued:
            return
        now_s = self.now_s()
        self._turn_away(self._admission.overdue(now_s))
        for entry in self._admission.turns(now_s):
            self._queued.pop(entry.number).give_turn()
        if self._queued and self._look is None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK_WALL_S, self._look_again)

    def look_soon(self) -> None:
        """Call `look` in the event loop's next turn, once for any number of calls."""
        if self._queued and self._look_soon is None:
            self._look_soon = asyncio.get_running_loop().call_soon(self._look_now)

    def _look_now(self) -> None:
        self._look_soon = None
        self.look()

    def _look_again(self) -> None:
        self._look = None
        self.look()

    def _turn_away(self, told: Iterable[tuple[Entry, Refused]]) -> None:
        for entry, refused in told:
            permit = self._permits.pop(entry.number)
            self._queued.pop(entry.number, None)
            self._count_left(entry, Outcome.REFUSED)
            self.metrics.refused(entry.work_class, refused.reason)
            permit.give_turn(refused)

    def _count_left(self, entry: Entry, outcome: Outcome) -> None:
        if not self._permits:
            self._empty.set()
        self.metrics.left(entry.work_class, outcome)

    # ---- what is shown

    def _show(self, limits: AdmissionLimits) -> None:
        for field in fields(limits):
            value = getattr(limits, field.name)
            if value is not None:
                self.metrics.limit(field.name, value)
        for work_class in WorkClass:
            self.metrics.begin(work_class, outcomes=("entered", *Outcome), reasons=RefusalReason)
            self.metrics.follow(
                work_class,
                in_flight=partial(self._reading, work_class, "in_flight"),
                waiting=partial(self._reading, work_class, "queued", "waiting"),
                waiting_tokens=partial(
                    self._reading, work_class, "queued_tokens", "waiting_tokens"
                ),
            )

    def _reading(self, work_class: WorkClass, *names: str) -> float:
        state = self._admission.class_state(work_class)
        return float(sum(getattr(state, name) for name in names))
