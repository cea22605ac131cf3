"""Admission in an API process that does not have it: permits are asked for, and given back.

As `AdmissionController` for those who handle requests. What a request is about to do is asked, what
it has done is told: entering and declaring wait for an answer, all else does not. Tokens made are
told every `_TELL_WALL_S`, and before a sequence's end.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from serving.policy.admission.entry import Counted, Entry, Outcome, Stage
from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.policy.admission.work import Client, Work, WorkClass
from serving.server.gateway.admission_controller import Permit
from serving.server.gateway.permits import permit_messages as told
from serving.server.gateway.permits.permit_messages import PermitChannel, ToldRefusal

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

_TELL_WALL_S: Final = 0.05
"""Between two reports of tokens. Assumed: an estimate of answers' lengths is no faster."""

_CONNECT_WALL_S: Final = 0.1
_CONNECT_TRIES: Final = 6_000
"""Ten minutes: the first process listens once the engine is up, which this one waited for too."""

_GONE: Final = "the process that admits requests is gone"
_GONE_RETRY_S: Final = 30.0


class LentPermit(Permit):
    """A permit of another process's admission; its `entry` has what is known here of its own.

    What the base class asks of its admission is overridden, so that it has none.
    """

    def __init__(self, number: int, work: Work, answer: told.Entered, desk: "LentPermits") -> None:
        self.entry = Entry.of(work, number=number, now_s=0.0)
        self.entry.stage = Stage.QUEUED if answer.is_queued else Stage.WAITING
        self.rate = answer.rate
        self.refusal: Refused | None = None
        self.outcome: Outcome | None = None
        self.prompt_logprobs = 0
        self._desk = desk
        self._turn = asyncio.Event() if answer.is_queued else None
        self._refused: Refused | None = None
        self._cut: Outcome | None = None
        self._undeclared: list[Counted] = []
        self._declaring: asyncio.Future[told.Declared] | None = None

    async def turn(self) -> None:
        """Wait until the engine may have what was declared. Raises Refused."""
        await super().turn()
        self.entry.stage = Stage.WAITING
        while self._undeclared:
            if self._declaring is not None and not self._declaring.done():
                await asyncio.shield(self._declaring)
                continue
            counted, self._undeclared = self._undeclared, []
            number = self.entry.number
            self._declaring = self._desk.asked(number, told.Declare(number, counted))
        if self._declaring is not None:
            answer = await asyncio.shield(self._declaring)
            if answer.refusal is not None:
                self.refusal = answer.refusal.refused()
                raise self.refusal

    def declare(self, counted: Counted) -> None:
        """Have the work declared before the engine gets any of it, by `turn`."""
        self.entry.declared_sequences += counted.sequences
        self._undeclared.append(counted)

    def begin(self, counted: Counted) -> None:
        """Count sequences that the engine has taken."""
        self.entry.counted_tokens += counted.prompt_tokens
        self._desk.tell(told.Begin(self.entry.number, counted))

    def first_token(self) -> None:
        """Note the first token of a sequence."""
        self._desk.tell(told.FirstToken(self.entry.number))

    def made(self, tokens: int) -> None:
        """Count `tokens` more that the engine has made."""
        self._desk.made(self.entry.number, tokens)

    def end(self, *, made_tokens: int, by_itself: bool) -> None:
        """End a sequence of `made_tokens`; `by_itself` unless it was cut."""
        self._desk.tell_made()
        self._desk.tell(told.End(self.entry.number, made_tokens, by_itself))

    def _left(self, outcome: Outcome) -> None:
        if self.entry.stage is not Stage.LEFT:
            self.entry.stage = Stage.LEFT
            self._desk.leave(self, outcome)


class LentPermits:
    """The permits of this process, from the socket at `path`; for one event loop.

    `on_end_requests` and `on_end` do what the first process says; `on_end` also when it is `lost`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel: PermitChannel[told.FromAdmission] = PermitChannel(
            told.FromAdmission, on_message=self._hear, on_lost=self._lost
        )
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._permits: dict[int, LentPermit] = {}
        self._made: dict[int, int] = {}
        self._telling: asyncio.TimerHandle | None = None
        self.closed: Refused | None = None
        self.lost = asyncio.Event()
        self.on_end_requests: Callable[[bool], None] = lambda _: None
        self.on_end: Callable[[int], None] = lambda _: None

    async def start(self) -> None:
        """Connect to the first process, once it listens. Raises OSError if it never does."""
        loop = asyncio.get_running_loop()
        for _ in range(_CONNECT_TRIES):
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                await loop.create_unix_connection(lambda: self._channel, str(self._path))
                return
            await asyncio.sleep(_CONNECT_WALL_S)
        raise ConnectionError(f"nobody admits requests at {self._path}")

    async def stop(self) -> None:
        """Give everything back."""
        self._channel.close()

    # ---- for those who handle requests, as AdmissionController

    async def admit(self, work: Work) -> Permit:
        """A permit for `work`; raises Refused."""
        self._numbers += 1
        number = self._numbers
        asked = self.asked(number, told.Enter(number, work))
        try:
            answer = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self.tell(told.Leave(number, Outcome.ABORTED))  # whatever the answer is
            raise
        if isinstance(answer, told.Denied):
            raise answer.refusal.refused()
        permit = self._permits[number] = LentPermit(number, work, answer, self)
        return permit

    def would_refuse(self, client: Client, work_class: WorkClass) -> Refused | None:
        """Why any request is refused here, or None: limits are known where permits are given."""
        del client, work_class
        return None if self.closed is None else self.closed.again(RateState())

    def count_refusal(self, refused: Refused, work_class: WorkClass) -> None:
        """Count a request that was refused before `admit`."""
        self.tell(told.CountRefusal(ToldRefusal.of(refused), work_class))

    def look_soon(self) -> None:
        """Do nothing: turns are given elsewhere."""

    # ---- for permits, and what else this process has to say

    def asked(self, number: int, message: Any) -> "asyncio.Future[Any]":
        """Send a question; the future has its answer. One question of a number at a time."""
        assert number not in self._asked, number
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell(message)
        if not self._channel.is_open:
            self._answer(number, None)
        return future

    def tell(self, message: Any) -> None:
        """Send a message with others of this turn of the loop."""
        self._channel.send(message)

    async def page(self) -> told.Page:
        """The page of metrics of all processes; raises Refused without the first one."""
        self._numbers += 1
        page = await self.asked(self._numbers, told.AskPage(self._numbers))
        if isinstance(page, told.Denied):
            raise page.refusal.refused()
        assert isinstance(page, told.Page), page
        return page

    def made(self, number: int, tokens: int) -> None:
        """Count tokens that are told later."""
        self._made[number] = self._made.get(number, 0) + tokens
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(_TELL_WALL_S, self._tell_in_time)

    def tell_made(self) -> None:
        """Tell of the tokens that were counted."""
        if self._made:
            made, self._made = self._made, {}
            self.tell(told.Made(made))

    def leave(self, permit: LentPermit, outcome: Outcome) -> None:
        """Give a permit back."""
        self._permits.pop(permit.entry.number, None)
        self.tell_made()
        self.tell(told.Leave(permit.entry.number, outcome))

    def _tell_in_time(self) -> None:
        self._telling = None
        self.tell_made()

    # ---- what comes

    def _hear(self, message: told.FromAdmission) -> None:
        match message:
            case told.TurnCame():
                permit = self._permits.get(message.number)
                if permit is not None:
                    refusal = message.refusal
                    permit.give_turn(None if refusal is None else refusal.refused())
            case told.Closed():
                self.closed = None if message.refusal is None else message.refusal.refused()
            case told.EndRequests():
                self.on_end_requests(message.is_gone)
            case told.EndProcess():
                self.on_end(message.close_wall_s)
            case _:
                self._answer(message.number, message)

    def _answer(self, number: int, answer: Any) -> None:
        """Answer a question; None: nobody is there to do so."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked.done():
            gone = told.Denied(number, ToldRefusal.of(_gone()))
            asked.set_result(gone if answer is None else answer)

    def _lost(self) -> None:
        self.lost.set()
        self.closed = _gone()
        for number in list(self._asked):
            self._answer(number, None)
        for permit in self._permits.values():
            permit.give_turn(_gone())
        self.on_end(0)


def _gone() -> Refused:
    return Refused(RefusalReason.DRAINING, _GONE, retry_after_s=_GONE_RETRY_S, rate=RateState())
