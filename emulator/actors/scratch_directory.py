"""A temporary directory that does not outlive its owner, however the owner ends.

vLLM ends its engine process with SIGKILL when it is told to stop at once, so nothing in that
process can be trusted to clean up. A watcher of a few megabytes, outside the owner's process tree
and session, waits for the owner's end of a pipe to close and then removes the directory. This file
is the watcher's script too; it must import nothing but the standard library.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_DONE = b"done"
_WATCH_S = 10.0
_QUIET_S = 1.0
"""Processes that the owner had may write for a moment after it; they end when they miss it."""


class ScratchDirectory:
    """A new directory that only its user can enter; `path` is gone after `remove`, or the owner."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        end, pipe = os.pipe()  # neither end is inherited by other children
        self._pipe: int | None = pipe
        try:
            # The first process forks the watcher and ends: the watcher is nobody's child.
            subprocess.run(
                [sys.executable, "-I", "-S", __file__, str(self.path)],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(end)

    def remove(self) -> None:
        """Remove the directory and dismiss the watcher; idempotent."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(BrokenPipeError):  # somebody ended the watcher
            os.write(pipe, _DONE)
        os.close(pipe)


def _watch(path: str) -> None:
    """Wait for the owner; when it ended without a word, remove `path` until nobody writes there."""
    if sys.stdin.buffer.read() == _DONE:
        return
    end_s = time.monotonic() + _WATCH_S
    gone_s = 0.0
    while gone_s < _QUIET_S and time.monotonic() < end_s:
        gone_s = 0.0 if Path(path).exists() else gone_s + 0.1
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.1)


if __name__ == "__main__" and os.fork() == 0:
    _watch(sys.argv[1])
