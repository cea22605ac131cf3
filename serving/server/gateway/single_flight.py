"""One answer for all who ask at a time: what takes a while to find out is found out once."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """What `ask` says, kept; nobody is asked while nobody wants to know."""

    def __init__(
        self,
        ask: Callable[[], Coroutine[Any, Any, T]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_s = 0.0
        self._asking: asyncio.Task[T] | None = None
        self._under_way: set[asyncio.Task[T]] = set()

    async def fresh(self, max_age_s: float) -> T:
        """An answer to a question that was asked at most `max_age_s` wall seconds ago.

        Raises what `ask` does. Whoever stops waiting leaves it to the others.
        """
        asking = self._asking
        if asking is None or self._is_old(asking, max_age_s):
            self._asked_s = self._clock()
            self._asking = asking = asyncio.create_task(self._ask())
            self._under_way.add(asking)
            asking.add_done_callback(self._seen)
        return await asyncio.shield(asking)

    def forget(self) -> None:
        """Whoever asks from now on is told nothing that was asked before; who waits still is."""
        self._asking = None

    async def stop(self) -> None:
        """End what is under way; idempotent."""
        under_way = set(self._under_way)
        for asking in under_way:
            asking.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _is_old(self, asking: "asyncio.Task[T]", max_age_s: float) -> bool:
        """One that is under way is waited for, however long it takes."""
        if not asking.done():
            return False
        failed = asking.cancelled() or asking.exception() is not None
        return failed or self._clock() - self._asked_s > max_age_s

    def _seen(self, asking: "asyncio.Task[T]") -> None:
        """A failure is told to who waits; when nobody does any more, it is no news to asyncio."""
        self._under_way.discard(asking)
        if not asking.cancelled():
            asking.exception()
