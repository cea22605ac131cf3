"""Answers to callers without a key, on their way: who does not take them loses its connection.

An answer waits in gRPC's core until its client has a window for it and reads, which costs some
25 kB a call. gRPC for Python has no way to end such a call, and its connection ends them all.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

ANSWER_WALL_S: Final = 5.0
"""Of an answer, which is a few bytes, on its way."""

CONNECTION_ANSWERS_MAX: Final = 64
"""Of one connection, on their way at once: a client that reads has one or two."""

ANSWERS_MAX: Final = 1_024
"""Of all; for one more the connection goes that has most."""


class StrangerAnswers:
    """Those of one server; `cut_off` ends the connection of a peer, and `cut_off_late` that of one
    that takes too long: not of one that has shown a key, whose other calls would end with it.
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
        """Write it, as `context` does, which raises for one whose connection ends."""
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
