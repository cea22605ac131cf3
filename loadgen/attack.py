"""Sends a workload at a pacer's times and hands each result to a sink as it ends.

The one place of the load generator that waits for time. It decides nothing about rates (the pacer
does), protocols (the client does) or figures (those are made from the results, afterwards).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loadgen.clients.client import Client
from loadgen.pacer import Pacer
from loadgen.result import Result
from loadgen.workload import Workload

# The event loop's timers end up to a millisecond late, for epoll counts in those. Waiting half a
# millisecond less, and then turning the loop until the time has come, halves what sends are late.
EARLY_S: Final = 0.000_5


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackLimits:
    """What bounds an attack.

    `wall_per_pace` is wall seconds per second of the pacer's time; `max_in_flight` the most
    requests under way at once: one that is due beyond it waits, and is counted.
    """

    wall_per_pace: float
    max_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSummary:
    """How the sending went: requests that waited for `max_in_flight`, and those never sent."""

    held_back: int
    unsent: int
    interrupted: bool


class Attack:
    """One run of a workload; use it once.

    Invariants: no more than `max_in_flight` requests are under way; when `run` returns, every
    request that was sent has given the sink exactly one result.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        pacer: Pacer,
        client: Client,
        limits: AttackLimits,
        dilation: float,
        sink: Callable[[Result], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._workload = workload
        self._pacer = pacer
        self._client = client
        self._limits = limits
        self._dilation = dilation
        self._sink = sink
        self._now_ns = now_ns
        self._origin_ns = 0
        self._stopped = False
        self._begun = 0
        self._held_back = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._waits_for_reply = False

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._tasks)

    def stop(self) -> None:
        """Send no more, and abort what is under way; `run` returns soon after. May be repeated."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        self._wake()

    async def run(self) -> AttackSummary:
        """Send everything and wait for every reply, or until stopped.

        An exception of the client or the sink is a fault of ours: it ends the attack.
        """
        self._origin_ns = self._now_ns()
        async with asyncio.TaskGroup() as group:
            for index in range(len(self._workload)):
                intended_ns = await self._turn(index)
                if intended_ns is None:
                    break
                task = group.create_task(self._one(index, intended_ns))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        return AttackSummary(
            held_back=self._held_back,
            unsent=len(self._workload) - self._begun,
            interrupted=self._stopped,
        )

    async def _turn(self, index: int) -> int | None:
        """Wait until request `index` may go; returns when it was due, None once stopped."""
        while not self._stopped:
            elapsed_ns = self._now_ns() - self._origin_ns
            due_ns = self._pacer.pace(
                elapsed_ns=int(elapsed_ns / self._limits.wall_per_pace),
                sent=index,
                in_flight=len(self._tasks),
            )
            wall_ns = None if due_ns is None else int(due_ns * self._limits.wall_per_pace)
            if wall_ns is not None and wall_ns > elapsed_ns:
                await self._pause(max(0.0, (wall_ns - elapsed_ns) / 1e9 - EARLY_S))
            elif wall_ns is None:
                await self._pause(None)
            elif len(self._tasks) >= self._limits.max_in_flight:
                self._held_back += 1  # once: when a reply has ended there is room
                await self._pause(None)
            else:
                return wall_ns
        return None

    async def _pause(self, delay_s: float | None) -> None:
        """Wait for so long, or for the next reply to end; being stopped ends either."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._waits_for_reply = delay_s is None
        timer = None if delay_s is None else loop.call_later(delay_s, self._wake)
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waits_for_reply:
            self._wake()

    async def _one(self, index: int, intended_ns: int) -> None:
        self._begun += 1  # a task that is cancelled before it begins has sent nothing
        request = self._workload.request(index)
        reply = await self._client.send(request)
        self._sink(
            Result(
                request_id=request.request_id,
                intended_ns=intended_ns,
                sent_ns=reply.sent_ns - self._origin_ns,
                chunk_ns=tuple(at_ns - self._origin_ns for at_ns in reply.chunk_ns),
                asked_input_tokens=request.input_tokens,
                asked_output_tokens=request.output_tokens,
                input_tokens=reply.input_tokens,
                output_tokens=reply.output_tokens,
                error=reply.error,
                message=reply.message,
                dilation=self._dilation,
            )
        )
