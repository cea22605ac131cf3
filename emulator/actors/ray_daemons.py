"""Daemons of our own Ray: their processes, their unexpected end, their shutdown.

Without the node's daemon or Ray's server no chip can start; Ray notices the loss of its server
after a minute, and then ends its client process.

Daemons start with SIGTERM blocked: a service manager signals all processes of a server, and the
owner of this Ray decides when it ends. SIGKILL ends them; Ray's workers end with their daemon.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ray._private import worker
from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET

VITAL: Final = (PROCESS_TYPE_RAYLET, PROCESS_TYPE_GCS_SERVER)


@contextlib.contextmanager
def without_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread and in processes that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_daemons() -> dict[str, "subprocess.Popen[bytes]"]:
    """Daemons started by this process, by Ray's names; Ray will end them by SIGKILL."""
    node = worker._global_node
    assert node is not None, "Ray is not started"
    daemons = {}
    for name, (info, *_) in node.all_processes.items():
        info.process.terminate = info.process.kill
        daemons[name] = info.process
    return daemons


class DaemonWatch:
    """Calls `lost` once, from its own thread, with the first of `processes` (ids by name) to end.

    Until `stop`; inert where the system has no pidfds.
    """

    def __init__(self, processes: Mapping[str, int], lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._selector = selectors.DefaultSelector()
        end, self._pipe = os.pipe()
        self._selector.register(end, selectors.EVENT_READ, None)
        self._gone: list[str] = []
        if hasattr(os, "pidfd_open"):
            for name, pid in processes.items():
                try:
                    self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, name)
                except ProcessLookupError:  # it has ended, and somebody has taken note of that
                    self._gone.append(name)
        self._thread = threading.Thread(target=self._wait, name="ray-daemons", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        at_once = 0 if self._gone else None
        ended = {key.data for key, _ in self._selector.select(at_once)} | set(self._gone)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        if None not in ended:
            self._lost(sorted(ended)[0])

    def stop(self) -> None:
        """Stop watching; idempotent."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            # A process that was forked meanwhile may hold this end too: closing says nothing then.
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                os.write(pipe, b"\0")
            os.close(pipe)
            if threading.current_thread() is not self._thread:
                self._thread.join()
