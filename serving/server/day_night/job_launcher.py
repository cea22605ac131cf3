"""Becomes the training job, which outlives its server by at most one checkpoint.

    python -P -m serving.server.day_night.job_launcher PARENT_PID COMMAND...

The kernel sends the job SIGTERM when the server ends, however it does; the job then saves and ends.
Importing this module must be cheap: it runs before each job.
"""

import ctypes
import os
import signal
import sys
from typing import Final

NICENESS: Final = 10
"""Serving goes first on shared cores."""

_FILES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    """Exec the job; does not return."""
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
