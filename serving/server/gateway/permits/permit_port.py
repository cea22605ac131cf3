"""Gives the permits of this process's admission to the server's other API processes.

Each connection is one process. When one is lost, its permits are given back as failed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from serving.policy.admission.entry import Outcome, Stage
from serving.policy.admission.refusal import Refused
from serving.server.gateway.admission_controller import AdmissionController, Permit
from serving.server.gateway.permits import permit_messages as told
from serving.server.gateway.permits.permit_messages import PermitChannel, ToldRefusal
from serving.telemetry.latency_window import RequestTimes

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows


class _Borrower:
    """One process's permits, by its numbers."""

    def __init__(self, port: "PermitPort") -> None:
        self._port = port
        self.permits: dict[int, Permit] = {}
        self.held = told.ClientsHeld(0, 0, 0)
        self.tasks: set[asyncio.Task[None]] = set()
        self.channel: PermitChannel[told.FromProcess] = PermitChannel(
            told.FromProcess, on_message=self._hear, on_lost=self._lost, on_open=self._open
        )

    def _open(self) -> None:
        self._port.joined(self)

    def _hear(self, message: told.FromProcess) -> None:
        match message:
            case told.Enter():
                self._enter(message)
            case told.Made():
                for number, tokens in message.tokens.items():
                    if (permit := self.permits.get(number)) is not None:
                        permit.made(tokens)
            case told.CountRefusal():
                refused = message.refusal.refused()
                self._port.admission.count_refusal(refused, message.work_class)
            case told.Times():
                self._port.on_times(message.times)
            case told.ClientsHeld():
                self.held = message
            case told.AskPage():
                self._begin(self._page(message.number))
            case _:
                permit = self.permits.get(message.number)
                if permit is not None:
                    self._follow(permit, message)

    def _enter(self, asked: told.Enter) -> None:
        try:
            permit = self._port.admission.enter(asked.work)
        except Refused as refused:
            self.channel.send(told.Denied(asked.number, ToldRefusal.of(refused)))
            return
        self.permits[asked.number] = permit
        is_queued = permit.entry.stage is Stage.QUEUED
        self.channel.send(told.Entered(asked.number, permit.rate, is_queued))
        if is_queued:
            self._begin(self._tell_turn(asked.number, permit))

    async def _tell_turn(self, number: int, permit: Permit) -> None:
        refusal = None
        try:
            await permit.turn()
        except Refused as refused:
            refusal = ToldRefusal.of(refused)
        self.channel.send(told.TurnCame(number, refusal))

    def _follow(
        self,
        permit: Permit,
        message: told.Declare | told.Begin | told.FirstToken | told.End | told.Leave,
    ) -> None:
        match message:
            case told.Declare():
                refusal = None
                try:
                    for counted in message.counted:
                        permit.declare(counted)
                except Refused as refused:
                    refusal = ToldRefusal.of(refused)
                self.channel.send(told.Declared(message.number, refusal))
            case told.Begin():
                permit.begin(message.counted)
            case told.FirstToken():
                permit.first_token()
            case told.End():
                permit.end(made_tokens=message.made_tokens, by_itself=message.by_itself)
            case told.Leave():
                del self.permits[message.number]
                permit.leave(message.outcome)

    async def _page(self, number: int) -> None:
        status, content_type, text = await self._port.page()
        self.channel.send(told.Page(number, status, content_type, text))

    def _begin(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _lost(self) -> None:
        for task in self.tasks:
            task.cancel()
        permits, self.permits = self.permits, {}
        for permit in permits.values():
            permit.leave(Outcome.FAILED)
        self._port.lost(self)


class PermitPort:
    """The socket at `path`, of `admission`; for one event loop.

    `on_times` gets the latencies of other processes' requests, `page` answers with the page of
    metrics: status, content type and text.
    """

    def __init__(
        self,
        path: Path,
        admission: AdmissionController,
        *,
        on_times: Callable[[RequestTimes], None],
        page: Callable[[], Awaitable[tuple[int, str, bytes]]],
    ) -> None:
        self._path = path
        self.admission = admission
        self.on_times = on_times
        self.page = page
        self._borrowers: set[_Borrower] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Borrower(self).channel, str(self._path)
        )
        self.admission.on_closed = self._tell_closed

    async def stop(self) -> None:
        """Let go of all; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in list(self._borrowers):
            each.channel.close()

    @property
    def held(self) -> list[told.ClientsHeld]:
        """What clients make each of the others hold."""
        return [each.held for each in self._borrowers]

    def end_requests(self, *, engine_is_gone: bool) -> None:
        """Have the others abort their requests, or fail them."""
        self._tell(told.EndRequests(engine_is_gone))

    def end_processes(self, close_wall_s: int) -> None:
        """Have the others end."""
        self._tell(told.EndProcess(close_wall_s))

    def joined(self, borrower: _Borrower) -> None:
        """A process is there."""
        self._borrowers.add(borrower)
        borrower.channel.send(_closed(self.admission.closed))

    def lost(self, borrower: _Borrower) -> None:
        """A process is gone."""
        self._borrowers.discard(borrower)

    def _tell_closed(self, refused: Refused | None) -> None:
        self._tell(_closed(refused))

    def _tell(self, message: told.FromAdmission) -> None:
        for each in self._borrowers:
            each.channel.send(message)
            each.channel.flush()


def _closed(refused: Refused | None) -> told.Closed:
    return told.Closed(None if refused is None else ToldRefusal.of(refused))
