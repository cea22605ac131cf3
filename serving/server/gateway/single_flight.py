"""Coalesces concurrent calls of a slow function, and caches the result."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """The answers of `ask`, which is called on demand only."""

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
        """The result of a call begun at most `max_age_s` wall seconds ago.

        Raises what `ask` does. A cancelled caller leaves the call to the others.
        """
        asking = self._asking
        if asking is None or self._is_old(asking, max_age_s):
            self._asked_s = self._clock()
            self._asking = asking = asyncio.create_task(self._ask())
            self._under_way.add(asking)
            asking.add_done_callback(self._seen)
        return await asyncio.shield(asking)

    def forget(self) -> None:
        """Answer later callers from a new call; those that wait keep the one under way."""
        self._asking = None

    async def stop(self) -> None:
        """Cancel the call under way; idempotent."""
        under_way = set(self._under_way)
        for asking in under_way:
            asking.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _is_old(self, asking: "asyncio.Task[T]", max_age_s: float) -> bool:
        """False while it is under way, however long that takes."""
        if not asking.done():
            return False
        failed = asking.cancelled() or asking.exception() is not None
        return failed or self._clock() - self._asked_s > max_age_s

    def _seen(self, asking: "asyncio.Task[T]") -> None:
        """Retrieve the exception: asyncio would warn when no waiter is left."""
        self._under_way.discard(asking)
        if not asking.cancelled():
            asking.exception()
