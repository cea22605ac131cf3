"""Memory of a server's processes: the API's, the engine's and all others."""

import contextlib
import threading
import time
from typing import Final, Self

import psutil

EVERY_S: Final = 0.05


class ServerMemory:
    """Samples the total resident bytes of a server's processes while entered."""

    def __init__(self, pid: int) -> None:
        server = psutil.Process(pid)
        self.processes = [server, *server.children(recursive=True)]
        self._largest_bytes = 0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def now_bytes(self) -> int:
        """Total now; ended processes count 0."""
        total = 0
        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def lives(self) -> bool:
        """Whether all processes of the start still run."""
        for process in self.processes:
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    return False
            except psutil.Error:
                return False
        return True

    def begin(self) -> int:
        """Forget the largest size so far; returns the current one."""
        self._largest_bytes = self.now_bytes()
        return self._largest_bytes

    @property
    def largest_bytes(self) -> int:
        return self._largest_bytes

    def given_back(
        self, start_bytes: int, *, kept_bytes_max: int, wall_s: float
    ) -> tuple[int, float]:
        """Wait until at most that remains above `start_bytes`; returns the rest and the time."""
        began_s = time.monotonic()
        while True:
            kept_bytes = self.now_bytes() - start_bytes
            passed_s = time.monotonic() - began_s
            if kept_bytes <= kept_bytes_max or passed_s >= wall_s:
                return max(0, kept_bytes), passed_s
            time.sleep(0.1)  # polls other processes

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            self._largest_bytes = max(self._largest_bytes, self.now_bytes())
