"""A temporary directory that does not outlive its owner, however the owner ends.

vLLM may SIGKILL its engine process, which then cannot clean up. A watcher of a few megabytes,
outside the owner's process tree and session, waits for the owner's end of a pipe to close; then it
ends the processes with open files in the directory (Ray's agents, which try for a minute to reach
Ray), and removes it. This file is its script too; it imports only the standard library.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_WATCH_S = 10.0
_QUIET_S = 1.0
"""The owner's processes may write for a moment after it."""


class ScratchDirectory:
    """A new directory private to its user, removed by `remove` or with its owner."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        end, pipe = os.pipe()  # neither end is inherited by other children
        self._pipe: int | None = pipe
        try:
            # The first process forks the watcher and ends: the watcher has no parent here.
            subprocess.run(
                [sys.executable, "-I", "-S", __file__, str(self.path), str(os.getpid())],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(end)

    def remove(self) -> None:
        """Remove the directory and end the watcher; idempotent.

        Without a watcher, clears the directory here, in one to ten seconds.
        """
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            os.write(pipe, b"\n")
        except BrokenPipeError:
            _clear(str(self.path), os.getpid())
        os.close(pipe)


def _watch(path: str, owner: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # told to all of a server's processes at once
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    _clear(path, owner)


def _clear(path: str, owner: int) -> None:
    """Kill the processes that use `path` and remove it, until it has been unused for a second."""
    end_s = time.monotonic() + _WATCH_S
    quiet_s = 0.0
    while quiet_s < _QUIET_S and time.monotonic() < end_s:
        users = [pid for pid in _users(path, owner) if pid not in (owner, os.getpid())]
        for pid in users:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet_s = 0.0 if users or Path(path).exists() else quiet_s + 0.1
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.1)


def _users(path: str, owner: int) -> Iterator[int]:
    """Python's and Ray's processes with an open file below `path`, removed files included.

    Excludes the owner's forks before exec, which share its files. Empty without /proc.
    """
    python = Path("/proc/self/exe")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            program = (process / "exe").readlink()
            if program != python.readlink() and "ray" not in program.parts:
                continue
            if _is_starting(process, owner):  # before its files: it may become its program now
                continue
            files = (str(each.readlink()) for each in (process / "fd").iterdir())
            if any(file.startswith(f"{path}/") for file in files):
                yield int(process.name)


def _is_starting(process: Path, owner: int) -> bool:
    """Whether it is a fork of `owner` before exec."""
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    if parent != owner:
        return False
    own = (process.parent / str(owner) / "cmdline").read_bytes()
    return (process / "cmdline").read_bytes() == own


if __name__ == "__main__" and os.fork() == 0:
    _watch(sys.argv[1], int(sys.argv[2]))
