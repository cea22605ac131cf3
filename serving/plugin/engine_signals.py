"""Whom a server's SIGTERM and SIGINT end: while it serves, the server's own process decides.

A service manager tells every process of a server to end, a terminal its whole process group. An
engine that heeds that itself drops the requests that the server's process would still see to their
ends. So that process has the engine leave the signals to it, and heed them again when it is time.
vLLM's handlers, and what becomes of the signals while an engine starts, stay as they are.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class EngineSignals:
    """The handlers of one engine's process; both methods do nothing but in its main thread."""

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def leave(self) -> None:
        """Let the signals pass; idempotent."""
        if not self._handlers and threading.current_thread() is threading.main_thread():
            # A handler and not SIG_IGN, which processes that are started later would inherit.
            self._handlers = {number: signal.signal(number, _pass) for number in _NUMBERS}

    def heed(self) -> None:
        """Put the handlers back that were there before `leave`; idempotent."""
        if threading.current_thread() is threading.main_thread():
            handlers, self._handlers = self._handlers, {}
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _pass(_number: int, _frame: FrameType | None) -> None:
    """Nothing: the server's process was told too."""
