"""SIGTERM and SIGINT of an engine process, left to the API process while it serves.

A service manager or terminal signals every process; an engine that ended by itself would drop
requests that the API process still finishes. vLLM's handlers, and signals during the start, stay.

Python runs handlers before the main thread waits; a later signal waits too. An idle vLLM engine,
waiting for requests, was killed 8 s after the SIGTERM that ended its server.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

_WAKE_SIGNAL: Final = signal.SIGURG
"""Does nothing by itself; a handler makes it interrupt a wait."""

_WAKE_S: Final = 0.05
_WAKES_MAX: Final = 20
"""Per signal: a wake may also come between the check and the wait."""


class EngineSignals:
    """The handlers of one engine's process; no-ops outside its main thread."""

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Callable[..., Any] | int | None] = {}

    def leave(self) -> None:
        """Ignore the signals; idempotent."""
        if not self._handlers and threading.current_thread() is threading.main_thread():
            # A handler and not SIG_IGN, which processes that are started later would inherit.
            self._handlers = {number: signal.signal(number, _pass) for number in _NUMBERS}

    def heed(self) -> None:
        """Restore the handlers of before `leave`; idempotent."""
        if threading.current_thread() is threading.main_thread():
            handlers, self._handlers = self._handlers, {}
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _pass(_number: int, _frame: FrameType | None) -> None:
    """The API process has the signal too."""


def relay_signals() -> None:
    """Wake the main thread, which calls this once, at every signal of this process."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(_WAKE_SIGNAL, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_relay, args=(read,), name="signal-relay", daemon=True).start()


def _relay(read: int) -> None:
    main = threading.main_thread().ident
    assert main is not None
    while numbers := os.read(read, 64):
        if set(numbers) == {_WAKE_SIGNAL}:
            continue
        for _ in range(_WAKES_MAX):
            signal.pthread_kill(main, _WAKE_SIGNAL)
            time.sleep(_WAKE_S)  # the main thread does not say when it has heard
