"""Exit code and time limit of a server's end, which vLLM's server, when it returns, does not give.

`serve` in `openai_app` sets the variable while vLLM's server runs; code inside vLLM's app reads it.
Without it the process is not a server of `ultraserve`.
"""

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

HUNG_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the server did not end by itself within its bound."""


class ServerShutdown:
    """The end of one server's process.

    `code` is its exit code. `leave` ends the process at once with a code; the engine's process
    clears up after it.
    """

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self.code = 0
        self._leave = leave
        self._bound: threading.Timer | None = None

    def within(self, wall_s: float) -> None:
        """Leave in `wall_s`, unless the server has ended; in place of a bound that was set before.

        By a thread, because the loop may hang.
        """
        self.ended()
        self._bound = threading.Timer(wall_s, lambda: self._leave(self.code or HUNG_CODE))
        self._bound.daemon = True
        self._bound.start()

    def ended(self) -> None:
        """Take the bound back; idempotent."""
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.cancel()


server_shutdown: Final[ContextVar[ServerShutdown]] = ContextVar("server_shutdown")
