"""Free ports of loopback for processes that listen on them later: no two get the same."""

import contextlib
import random
import socket
from collections.abc import Iterable
from typing import Final

HOST: Final = "127.0.0.1"

_PORTS: Final = range(15_000, 32_000)
"""Below those that the kernel gives to connections."""


class DrawnPorts:
    """Ports of one service's processes; `taken` are its own, listened on or not."""

    def __init__(self, taken: Iterable[int] = (), *, among: range = _PORTS) -> None:
        self._taken = set(taken)
        self._among = among

    def draw(self) -> int:
        """A free port that was not drawn yet."""
        while True:
            port = random.choice(self._among)
            if port in self._taken:
                continue
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind((HOST, port))
                self._taken.add(port)
                return port

    def give_back(self, ports: Iterable[int]) -> None:
        """Let these be drawn again: their process has ended."""
        self._taken.difference_update(ports)
