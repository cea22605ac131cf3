"""Answers to callers without a key, who lose their connection if they do not read.

An unread answer costs gRPC's core some 25 kB; gRPC for Python ends it only with its connection.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

ANSWER_WALL_S: Final = 5.0
"""Time to send an answer of a few bytes."""

CONNECTION_ANSWERS_MAX: Final = 64
"""Unread answers of one connection: a client that reads has one or two."""

ANSWERS_MAX: Final = 1_024
"""Unread answers of all; one more ends the connection with most."""


class StrangerAnswers:
    """Answers of one server. `cut_off` ends a peer's connection, `cut_off_late` a slow peer's,
    unless it has shown a key: its other calls would end too.
    """

    def __init__(
        self,
        cut_off: Callable[[str], None],
        *,
        cut_off_late: Callable[[str], None],
        connection_max: int = CONNECTION_ANSWERS_MAX,
        answers_max: int = ANSWERS_MAX,
    ) -> None:
        self._cut_off, self._cut_off_late = cut_off, cut_off_late
        self._connection_max = connection_max
        self._answers_max = answers_max
        self._under_way: Counter[str] = Counter()
        self._count = 0

    async def write(self, context: Any, answer: Any) -> None:
        """Write `answer` to `context`; raises as that does."""
        peer = context.peer()
        self._make_room(peer)
        late = asyncio.get_running_loop().call_later(
            ANSWER_WALL_S, partial(self._cut_off_late, peer)
        )
        self._under_way[peer] += 1
        self._count += 1
        try:
            await context.write(answer)
        finally:
            late.cancel()
            self._count -= 1
            self._under_way[peer] -= 1
            if not self._under_way[peer]:
                del self._under_way[peer]

    def _make_room(self, peer: str) -> None:
        if self._under_way[peer] >= self._connection_max:
            self._cut_off(peer)
        elif self._count >= self._answers_max:
            self._cut_off(max(self._under_way, key=self._under_way.__getitem__))


class AnsweredContext:
    """A call's context whose writes have a time limit."""

    def __init__(self, context: Any, answers: StrangerAnswers) -> None:
        self._context = context
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: Any) -> None:
        """Send an answer."""
        await self._answers.write(self._context, message)
