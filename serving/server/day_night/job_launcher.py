"""Becomes the training job: a program that outlives its server by no more than one checkpoint.

    python -P -m serving.server.day_night.job_launcher PARENT_PID COMMAND...

The server's process may end without a word, so the kernel is asked to tell the job when it does,
with the SIGTERM on which a job saves and ends. Importing this must cost nothing: it runs before
each job.
"""

import ctypes
import os
import signal
import sys
from typing import Final

NICENESS: Final = 10
"""Serving comes first where the job shares its cores."""

_FILES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    """Take the job's place in this process; does not return."""
    parent, *command = arguments
    os.closerange(3, _FILES_MAX)  # not the server's sockets, should it have passed some on
    os.nice(NICENESS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
