"""Accepts chips at a listening socket.

A connection has seconds to prove the key. Handshakes run concurrently, so that a silent connection
delays no other; pending ones are limited.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Final

from emulator.actors.handshake import CLAIM_BYTES, HandshakeRefused, ServerHandshake

PROOF_TIMEOUT_S: Final = 5.0
"""A chip answers a greeting in milliseconds; a loaded host may need more."""

PENDING_MAX: Final = 512
"""Limit of unproven connections, of which the oldest is dropped; 144 at most are chips."""


class _Pending:
    """A greeted connection that has not proved the key."""

    __slots__ = ("claim", "connected", "end_s", "handshake")

    def __init__(self, connected: socket.socket, key: bytes) -> None:
        self.connected = connected
        self.handshake = ServerHandshake(key)
        self.claim = b""
        self.end_s = time.monotonic() + PROOF_TIMEOUT_S
        connected.setblocking(False)
        connected.send(self.handshake.greeting)  # fits into an empty socket's buffer

    def hear(self) -> tuple[int, bytes] | None:
        """Read the claim; when it is whole, returns the chip's number and the welcome.

        Raises OSError when the connection has closed or was refused.
        """
        more = self.connected.recv(CLAIM_BYTES - len(self.claim))
        if not more:
            raise HandshakeRefused("it has left before its claim was whole")
        self.claim += more
        return self.handshake.welcome(self.claim) if len(self.claim) == CLAIM_BYTES else None


class ChipServer:
    """Admits chips that connect to `listener`; `refused` counts all refusals."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self.refused = 0
        self._listener = listener
        self._listener.setblocking(False)
        self._key = key
        self._pending: dict[int, _Pending] = {}  # by file descriptor, the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def admit(self, chips: set[int], timeout_s: float) -> Iterator[tuple[int, socket.socket]]:
        """Yield each of `chips` with its connection, until all have come or time is up."""
        missing = set(chips)
        end_s = time.monotonic() + timeout_s
        while missing and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(left_s, self._soonest_s())):
                if key.fileobj is self._listener:
                    self._greet()
                elif key.fd in self._pending:
                    chip = self._hear(key.fd, missing)
                    if chip is not None:
                        missing.discard(chip)
                        yield chip, self._leave(key.fd)
            self._turn_away_late()

    def _soonest_s(self) -> float:
        for pending in self._pending.values():
            return max(0.0, pending.end_s - time.monotonic())
        return PROOF_TIMEOUT_S

    def _greet(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:  # it has left again
            return
        if len(self._pending) >= PENDING_MAX:
            self._turn_away(next(iter(self._pending)))
        try:
            self._pending[connected.fileno()] = _Pending(connected, self._key)
        except OSError:
            connected.close()
            self.refused += 1
            return
        self._selector.register(connected, selectors.EVENT_READ)

    def _hear(self, descriptor: int, missing: set[int]) -> int | None:
        pending = self._pending[descriptor]
        try:
            heard = pending.hear()
            if heard is None:
                return None
            chip, welcome = heard
            if chip not in missing:
                raise HandshakeRefused(f"nobody waits for chip {chip}")
            pending.connected.send(welcome)
        except BlockingIOError:
            return None
        except OSError:
            self._turn_away(descriptor)
            return None
        return chip

    def _turn_away_late(self) -> None:
        now_s = time.monotonic()
        for descriptor in [fd for fd, pending in self._pending.items() if pending.end_s <= now_s]:
            self._turn_away(descriptor)

    def _turn_away(self, descriptor: int) -> None:
        self.refused += 1
        with contextlib.suppress(OSError):
            self._leave(descriptor).close()

    def _leave(self, descriptor: int) -> socket.socket:
        pending = self._pending.pop(descriptor)
        self._selector.unregister(pending.connected)
        return pending.connected

    def close(self) -> None:
        """Close all pending connections; the listener stays its owner's."""
        for descriptor in list(self._pending):
            self._leave(descriptor).close()
        self._selector.close()
