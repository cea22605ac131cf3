"""Becomes a child process of a server, which the kernel asks to end when the server has.

    python -P -m serving.process.child_launcher PARENT_PID NICENESS SIGNAL COMMAND...

The kernel sends the child SIGNAL when its parent ends, however it does: at SIGTERM a training job
saves and ends, a replica ends its requests; a front, which has no engine then, is killed. Importing
this module must be cheap: it runs before each.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_FILES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def launched(
    command: Sequence[str], *, niceness: int = 0, at_end: int = signal.SIGTERM
) -> list[str]:
    """The command that launches `command`, by a program's path, as a child of this process.

    `at_end` is the signal that it gets at this process's end.
    """
    launcher = [sys.executable, "-P", "-m", "serving.process.child_launcher"]
    return [*launcher, str(os.getpid()), str(niceness), str(int(at_end)), *command]


def main(arguments: list[str]) -> None:
    """Exec the child; does not return."""
    parent, niceness, at_end, *command = arguments
    os.closerange(3, _FILES_MAX)  # not the server's sockets, should it have passed some on
    os.nice(int(niceness))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(at_end), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
