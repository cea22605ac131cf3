"""A live server's stream, read beside the page that reads it too."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import httpx


@dataclass
class Told:
    """Events of the API's stream by emulated time, polled four times as often as the page does.

    Snapshots are shared among readers, so this has every one that the page was shown.
    """

    origin: str
    key: str
    looks: dict[str, dict[str, Any]] = field(default_factory=dict)
    nights: dict[str, dict[str, Any]] = field(default_factory=dict)
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def _listen(self) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"{self.origin}/stream?interval_s=0.25"
        with httpx.stream("GET", url, headers=headers, timeout=60.0) as response:
            event = ""
            for line in response.iter_lines():
                if self._ended.is_set():
                    return
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    said = json.loads(value)
                    self.latest[event] = said
                    if event == "hardware":
                        self.looks[str(said["emulated_s"])] = said
                    elif event == "daynight":
                        self.nights[str(said["emulated_s"])] = said


def eventually(condition: Callable[[], bool], what: str, *, wall_s: float = 60.0) -> None:
    end_s = time.monotonic() + wall_s
    while not condition():
        assert time.monotonic() < end_s, f"no {what} in time"
        time.sleep(0.05)  # polls another thread and another process
