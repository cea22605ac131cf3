"""A process that asks a server for its probe now and then, beside clients that load it.

    python -m tests.benchmarks.gateway_probe URL PATH [PID]

A process of its own, so that no client's event loop is in the way. Each answer is a line: when it
was asked for by the host's monotonic clock, how long it took, and how long of it the scheduler of
this host let this process, or the first thread of process PID, wait for a processor, in seconds.
Where that thread runs the server's event loop the rest is the server's own: what it computes, and
whatever else its loop does first. No other thread counts: while one waits, the loop may be what
holds the answer up.
"""

import http.client
import os
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_EVERY_S: Final = 0.05
_NS: Final = 1e9


def waited_s(pid: int) -> float:
    """For how long a process's first thread was ready to run, and did not, since its start."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / _NS


def main(url: str, path: str, *pids: str) -> None:
    parts, counted = urlsplit(url), [os.getpid(), *map(int, pids)]
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    while True:
        before_s = sum(map(waited_s, counted))
        began_s = time.monotonic()
        connection.request("GET", path)
        connection.getresponse().read()
        took_s = time.monotonic() - began_s
        waited = min(took_s, sum(map(waited_s, counted)) - before_s)
        print(began_s, took_s, waited, flush=True)
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
