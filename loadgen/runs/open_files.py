"""How many connections this process, and those that it starts, may have open at once."""

import resource
from typing import Final

from loadgen.errors import OptionError

OTHER_FILES: Final = 64
"""Open beside the connections: the program's own, its pipes, a results file."""


def allow_connections(connections: int) -> None:
    """Raise the process's own limit of open files as far as `connections` need.

    Raises OptionError where the system allows fewer: a request that cannot be sent for want of a
    file would look like a failure of the server.
    """
    needed = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        raise OptionError(
            option="--max-in-flight",
            value=connections,
            expected=f"at most {hard - OTHER_FILES:,} a worker: the system allows a process "
            f"{hard:,} open files (ulimit -n)",
        ) from error
