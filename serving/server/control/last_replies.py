"""Reads of the engine, with the last reply where a new one takes too long.

An engine is slow during a long step, or while it starts chips. Concurrent equal requests share one
read.
"""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from serving.server.control.action_ledger import ANSWER_WALL_S_MAX
from serving.server.control.call_failure import answer, engine_busy
from serving.server.engine_call import Engine, EngineFailed, EngineGone
from serving.server.gateway.grpc.rpc_errors import CallRefused
from serving.wire.control_call import ControlReply, ControlRequest, StateReply, StateRequest

REPLIES_KEPT: Final = 64

REFRESH_WALL_S: Final = 5.0
"""Period of reading the state without a caller, for a last reply."""

ReplyT = TypeVar("ReplyT", bound=ControlReply)


@dataclass(slots=True, eq=False)
class _Question:
    """`asked_s` and the last reply's `last_s` are monotonic."""

    asked_s: float
    task: "asyncio.Task[Any]"
    last: ControlReply | None = None
    last_s: float = 0.0


class LastReplies:
    """Of one engine, in its client's loop."""

    def __init__(self, engine: Engine, *, answer_wall_s_max: float = ANSWER_WALL_S_MAX) -> None:
        self._engine = engine
        self._answer_wall_s_max = answer_wall_s_max
        self._questions: OrderedDict[ControlRequest, _Question] = OrderedDict()
        self._keeper: asyncio.Task[None] | None = None

    async def reply(self, request: ControlRequest, kind: type[ReplyT]) -> tuple[ReplyT, float]:
        """The engine's reply, and its age in wall seconds, 0 if new. Raises CallRefused in the
        engine's words, or when it is busy without a last reply; EngineGone, EngineFailed.
        """
        question = self._ask(request, kind)
        await asyncio.wait({question.task}, timeout=self._answer_wall_s_max)
        if question.task.done():
            reply = question.task.result()
            assert isinstance(reply, kind)
            return reply, 0.0
        if question.last is None:
            raise engine_busy(time.monotonic() - question.asked_s)
        assert isinstance(question.last, kind)
        return question.last, time.monotonic() - question.last_s

    def _ask(self, request: ControlRequest, kind: type[ReplyT]) -> _Question:
        before = self._questions.get(request)
        if before is not None and not before.task.done():
            return before
        task = asyncio.create_task(answer(self._engine, request, kind))
        question = _Question(asked_s=time.monotonic(), task=task)
        if before is not None:
            question.last, question.last_s = before.last, before.last_s
        task.add_done_callback(lambda _: _keep(question))
        self._questions[request] = question
        self._questions.move_to_end(request)
        while len(self._questions) > REPLIES_KEPT:
            _, oldest = self._questions.popitem(last=False)
            oldest.task.cancel()
        return question

    def start(self) -> None:
        """Begin to read the state periodically."""
        self._keeper = asyncio.create_task(self._keep_state())

    async def _keep_state(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_WALL_S)
            try:
                await self.reply(StateRequest(), StateReply)
            except EngineGone:
                return
            except (CallRefused, EngineFailed):
                pass  # whoever asks is told

    async def stop(self) -> None:
        """Cancel the reads under way; idempotent."""
        tasks = [each.task for each in self._questions.values() if not each.task.done()]
        if self._keeper is not None:
            tasks.append(self._keeper)
            self._keeper = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _keep(question: _Question) -> None:
    """Keep a reply; retrieves a failure, so that asyncio does not warn."""
    if not question.task.cancelled() and question.task.exception() is None:
        question.last, question.last_s = question.task.result(), question.asked_s
