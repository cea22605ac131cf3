"""How a server's process ends, for whoever started it: vLLM's server returns, and says nothing.

`serve` in `openai_app` sets the variable for the time that vLLM's server has the process; what
runs inside vLLM's app finds it there. Where it is not set the process is somebody else's.
"""

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

HUNG_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the server did not end by itself within its bound."""


class ServerEnd:
    """The end of one server's process.

    `code` is its exit code, 0 unless somebody has set another. `leave` takes the process away at
    once, with a code and without a word; the engine's process clears up after it.
    """

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self.code = 0
        self._leave = leave
        self._bound: threading.Timer | None = None

    def within(self, wall_s: float) -> None:
        """Leave in `wall_s`, unless the server has ended; in place of a bound that was set before.

        A thread sees to it: a loop that hangs would not.
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


server_end: Final[ContextVar[ServerEnd]] = ContextVar("server_end")
