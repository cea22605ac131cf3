"""SIGTERM and SIGINT of an engine process: left to the API process while it serves, and not missed.

A service manager signals every process of a server, a terminal its whole process group; an engine
that ends by itself drops the requests that the API process would still see to their ends. So that
has the engine leave the signals to it, and heed them again when it is time. vLLM's handlers, and
the signals of an engine that starts, stay as they are.

Python handles signals in the main thread, before it waits. One that comes later, or to another
thread, is not handled until the wait is over: an idle vLLM engine waits for its next request, and
was killed 8 s after the SIGTERM that ended its server.
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
"""Which does nothing by itself; a handler makes it interrupt a wait."""

_WAKE_S: Final = 0.05
_WAKES_MAX: Final = 20
"""Of one signal: one wake may come between the look and the wait too."""


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


def relay_signals() -> None:
    """Wake the main thread at every signal of this process; to be called in it, once."""
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
