"""Makes SIGINT and SIGTERM end a server that is still starting, at once and completely.

vLLM's own handler raises KeyboardInterrupt, which vLLM swallows while it waits for its engine: the
start goes on, or hangs until the next signal. asyncio's holds Ctrl-C back until the engine is up.
SystemExit passes both, and vLLM ends its engine on the way out. When the server is up it replaces
these handlers by its own.
"""

import signal
import threading
from types import FrameType
from typing import Never

_VLLM_START = "vllm.entrypoints.launchers.api_server.entry"


def end_imports_on_signals() -> None:
    """Let the signals end the process as the system does; there is nothing to clean up yet.

    An exception of a handler may be lost while an extension module initialises itself.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def end_start_on_signals() -> None:
    """Install the handlers; from the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_start)


def keep_ending_start_on_signals() -> None:
    """Install the handlers where vLLM's server, on its start, has put its own; nowhere else."""
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGTERM), "__module__", None) == _VLLM_START:
        end_start_on_signals()


def _end_start(number: int, _frame: FrameType | None) -> Never:
    raise SystemExit(128 + number)
