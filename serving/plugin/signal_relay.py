"""Lets an engine's process hear of a signal while its main thread waits.

Python handles signals in the main thread, which looks for them before it waits. One that comes
after that look, or to another thread of the process, stays unheard until the wait is over: an idle
vLLM engine waits for its next request, and was killed 8 s after the SIGTERM that ended its server.
"""

import os
import signal
import threading
import time
from typing import Final

_WAKES: Final = signal.SIGURG
"""Which does nothing by itself; a handler makes it interrupt a wait."""

_WAKE_S: Final = 0.05
_WAKES_MAX: Final = 20
"""Of one signal: one wake may come between the look and the wait too."""


def relay_signals() -> None:
    """Wake the main thread at every signal of this process; to be called in it, once."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(_WAKES, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_relay, args=(read,), name="signal-relay", daemon=True).start()


def _relay(read: int) -> None:
    main = threading.main_thread().ident
    assert main is not None
    while numbers := os.read(read, 64):
        if set(numbers) == {_WAKES}:
            continue
        for _ in range(_WAKES_MAX):
            signal.pthread_kill(main, _WAKES)
            time.sleep(_WAKE_S)  # the main thread does not say when it has heard
