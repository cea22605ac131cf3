"""Makes SIGINT and SIGTERM end a starting server at once and completely.

vLLM swallows its handler's KeyboardInterrupt while it waits for its engine; asyncio delays Ctrl-C
until the engine is up. SystemExit passes both, and vLLM ends its engine on the way out. A running
server replaces these handlers.
"""

import signal
import threading
from types import FrameType
from typing import Never

_VLLM_START = "vllm.entrypoints.launchers.api_server.entry"


def end_imports_on_signals() -> None:
    """Let the system end the process; there is nothing to clean up yet.

    An exception may be lost while an extension module initialises.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def end_start_on_signals() -> None:
    """Install the handlers; from the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_start)


def keep_ending_start_on_signals() -> None:
    """Install the handlers, if vLLM's starting server has put its own."""
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGTERM), "__module__", None) == _VLLM_START:
        end_start_on_signals()


def _end_start(number: int, _frame: FrameType | None) -> Never:
    raise SystemExit(128 + number)
