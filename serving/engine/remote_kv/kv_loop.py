"""The event loop of an engine's exchange, in a thread beside the engine's own: all connections, in
and out, are tasks of it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

_END_WALL_S: Final = 5.0

_NAMES_MAX: Final = 16
"""Hosts' names that are looked up at once: some longer than who asked has waited for them."""

_Result = TypeVar("_Result")


class KvLoop:
    """Runs from its making until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._loop.set_default_executor(ThreadPoolExecutor(_NAMES_MAX, "asyncio-names"))
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kv-exchange", daemon=True
        )
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have it called in the loop, after what was to be called before; not when it is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait in another thread until it has run."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task (in the loop)."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """End all tasks and the thread; idempotent."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_END_WALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
