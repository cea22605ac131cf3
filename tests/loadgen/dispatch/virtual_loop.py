"""An event loop whose time jumps to the next timer: runs of hours take milliseconds, exactly."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")

TURN_S = 0.000_001  # a turn of the loop takes some time, or whoever turns it to wait never ends


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the time instead of waiting for files."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        assert found or timeout is not None, "nothing will ever happen"
        self.now_s += max(timeout or 0.0, TURN_S)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` begins at zero and passes only while everything waits."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def now_ns(self) -> int:
        return round(self.time() * 1e9)


def run_virtually(loop: VirtualLoop, main: Coroutine[Any, Any, Value]) -> Value:
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()
