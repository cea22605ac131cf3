"""The daemons of a Ray of our own: who they are, when one has ended, and how they are ended.

Chips are started by the node's daemon and known to Ray's server. When one of the two is gone, those
that serve may go on for a while, and no other can be started; Ray itself notices after a minute
that its server is gone, and then ends the process that uses it.

They are started with SIGTERM blocked: a service manager tells all processes of a server to end,
and the one that owns this Ray says when. They are ended by SIGKILL instead; Ray's workers end when
their daemon does.
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
    """Block SIGTERM in this thread, and so in every process that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_daemons() -> dict[str, "subprocess.Popen[bytes]"]:
    """The daemons that this process has started, by Ray's names; told to end, they are killed."""
    node = worker._global_node
    assert node is not None, "Ray is not started"
    daemons = {}
    for name, (info, *_) in node.all_processes.items():
        info.process.terminate = info.process.kill
        daemons[name] = info.process
    return daemons


class DaemonWatch:
    """Calls `lost` once, from a thread of its own, with the name of the first of `processes` (by
    name, their ids) that ends before `stop`, or has ended already.

    Does nothing where the system has no file descriptors of processes.
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
        """Forget them; idempotent."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            # A process that was forked meanwhile may hold this end too: closing says nothing then.
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                os.write(pipe, b"\0")
            os.close(pipe)
            if threading.current_thread() is not self._thread:
                self._thread.join()
