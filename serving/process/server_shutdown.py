"""Exit code and time limit of a server's end.

`serve` in `openai_app` sets the variable while vLLM's server runs; without it the process is not a
server of `ultraserve`.
"""

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

HUNG_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the server did not end within its bound."""


class ServerShutdown:
    """The end of one server's process, with exit code `code`; `leave` ends the process at once."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self.code = 0
        self._leave = leave
        self._bound: threading.Timer | None = None

    def within(self, wall_s: float) -> None:
        """Leave in `wall_s`, unless the server has ended, by a thread, as the loop may hang.

        Replaces an earlier bound.
        """
        self.ended()
        self._bound = threading.Timer(wall_s, lambda: self._leave(self.code or HUNG_CODE))
        self._bound.daemon = True
        self._bound.start()

    def ended(self) -> None:
        """Cancel the bound; idempotent."""
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.cancel()


server_shutdown: Final[ContextVar[ServerShutdown]] = ContextVar("server_shutdown")
