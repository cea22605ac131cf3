"""SIGHUP reloads the keys, as for daemons; the loss of the terminal still ends the process.

The kernel signals both alike. A process started to ignore it (`nohup`) goes on.
"""

import asyncio
import os
import signal
from typing import Any

from serving.access.key_ring import KeyRing


class KeyReload:
    """Reloads `ring` at SIGHUP; `start` and `stop` from the main thread's loop."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._ends_with_terminal = False
        self._before: Any = signal.SIG_DFL

    async def start(self) -> None:
        """Listen for the signal."""
        self._before = signal.getsignal(signal.SIGHUP)
        ignored = self._before is signal.SIG_IGN
        self._ends_with_terminal = not ignored and _has_terminal()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._heard)

    async def stop(self) -> None:
        """Restore the earlier handler; idempotent."""
        removed = asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        if removed and self._before is not None:  # None: who listened is not Python's to put back
            signal.signal(signal.SIGHUP, self._before)

    def _heard(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._ring.reload()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
