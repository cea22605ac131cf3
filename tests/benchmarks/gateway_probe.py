"""A process that asks a server for its probe now and then, beside clients that load it.

    python -m tests.benchmarks.gateway_probe URL PATH PID,...

A process of its own, so that no client's event loop is in the way. Each answer is a line: how long
it took, and how long of it the scheduler of this host let this process or one of the server's
wait for a processor, in seconds. The rest is the server's own: what it computes, and whatever else
its event loop does first.
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


def waited_s(pids: list[int]) -> dict[str, float]:
    """For how long each thread of the processes was ready to run, and did not, since its start."""
    waits = {}
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                waits[str(file)] = int(file.read_text().split()[1]) / _NS
            except OSError:
                continue  # the thread has ended
    return waits


def main(url: str, path: str, pids: str) -> None:
    parts, servers = urlsplit(url), list(map(int, pids.split(",")))
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    while True:
        own, theirs = waited_s([os.getpid()]), waited_s(servers)
        began_s = time.monotonic()
        connection.request("GET", path)
        connection.getresponse().read()
        took_s = time.monotonic() - began_s
        longest_s = max(
            (after - theirs.get(thread, after) for thread, after in waited_s(servers).items()),
            default=0.0,
        )
        own_s = sum(waited_s([os.getpid()]).values()) - sum(own.values())
        print(took_s, min(took_s, own_s + longest_s), flush=True)
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
