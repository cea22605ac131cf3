"""A connection of a port from acceptance to its end; a client without a complete first request head
in time is cut off.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, cast

from serving.server.connections.connection_registry import ConnectionRegistry

_STRANGER_BYTES: Final = 16 * 2**10
"""Per read of a connection without a key; a thousand may hold them while they wait for turns."""

_HEAD_END: Final = b"\r\n\r\n"


class ClientConnection(asyncio.BufferedProtocol, ABC):
    """One connection; `buffer` may be shared by a loop's connections.

    `greeting` accepts it, and ends with its TLS handshake.
    """

    def __init__(
        self, *, registry: ConnectionRegistry, head_wait_s: float, buffer: memoryview
    ) -> None:
        self.heard_s = 0.0  # on the monotonic clock, when it said something last
        self.greeting: asyncio.Task[None] | None = None
        self._registry = registry
        self._head_wait_s = head_wait_s
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def is_stranger(self) -> bool:
        """Whether it has shown no key."""

    @property
    def waits_for_turn(self) -> bool:
        """Whether a call waits unread for its turn."""
        return False

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Take received bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait up to `head_wait_s` for the first head."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass
        if transport.get_extra_info("sslcontext") is not None:
            # What is not read waits decrypted, and not only with its sender.
            cast("Any", transport).set_read_buffer_limits(high=_STRANGER_BYTES)
        self._waiting = asyncio.get_running_loop().call_later(self._head_wait_s, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The read buffer."""
        del sizehint
        return self._buffer[:_STRANGER_BYTES] if self.is_stranger else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` from the buffer."""
        self.heard_s = time.monotonic()  # the loop's own counts milliseconds
        self._received(bytes(self._buffer[:nbytes]))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the registry."""
        del error
        self._transport = None
        self._stop_waiting()
        self._registry.remove(self)

    def abort(self) -> None:
        """Cut it off, also during its handshake."""
        if self._transport is not None:
            self._transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()


class HttpConnection(ClientConnection):
    """An HTTP connection; `make` makes its protocol, `is_at_work` says whether a transport has a
    request with a key in progress.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        is_at_work: Callable[[asyncio.BaseTransport], bool],
        **port: Any,
    ) -> None:
        super().__init__(**port)
        self._make = make
        self._is_at_work = is_at_work
        self._then: asyncio.Protocol | None = None  # what has the connection once it has spoken
        self._head_tail = b""  # of a first head that is open

    @property
    def is_stranger(self) -> bool:
        """Whether no request with a key is in progress."""
        return self._transport is None or not self._is_at_work(self._transport)

    def _received(self, data: bytes) -> None:
        if self._then is None:
            assert self._transport is not None
            self._registry.spoke(self)
            self._then = self._make()
            self._then.connection_made(self._transport)
        if self._waiting is not None:
            if _HEAD_END in self._head_tail + data:
                self._stop_waiting()
            self._head_tail = (self._head_tail + data)[-len(_HEAD_END) + 1 :]
        self._then.data_received(data)

    def pause_writing(self) -> None:
        """The client's buffer is full."""
        if self._then is not None:
            self._then.pause_writing()

    def resume_writing(self) -> None:
        """The client's buffer has room."""
        if self._then is not None:
            self._then.resume_writing()

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return None if self._then is None else self._then.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """Pass it on."""
        if self._then is not None:
            self._then.connection_lost(error)
        super().connection_lost(error)
