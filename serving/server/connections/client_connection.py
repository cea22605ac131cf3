"""A connection of a port, from its acceptance to its end: HTTP's, or gRPC's.

A client that says nothing, or does not end the head of its first request, is cut off.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, cast

from serving.server.connections.connection_registry import ConnectionRegistry
from serving.server.connections.grpc_relay import GatedSide, GrpcSocket

_STRANGER_BYTES: Final = 16 * 2**10
"""Read at once from a connection without a key. While it waits for its turn they stay here, and
there may be a thousand."""

_HEAD_END: Final = b"\r\n\r\n"

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Begins each connection of HTTP/2: https://www.rfc-editor.org/rfc/rfc9113#section-3.4."""


class ClientConnection(asyncio.BufferedProtocol, ABC):
    """One connection; `buffer` is read into, and all connections of a loop can share it.

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
        self._then: asyncio.Protocol | None = None  # what has the connection once it has spoken
        self._first = b""  # what has come before that; of HTTP, the last bytes of an open head
        self._waiting: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def is_stranger(self) -> bool:
        """Whether no key is known on it."""

    @property
    def waits_for_turn(self) -> bool:
        """Whether it has a call that is not read any further before its turn."""
        return False

    @abstractmethod
    def _received(self, data: bytes) -> None:
        """Take what has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes, for `head_wait_s`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass
        if transport.get_extra_info("sslcontext") is not None:
            # What is not read waits decrypted, and not only with its sender.
            cast("Any", transport).set_read_buffer_limits(high=_STRANGER_BYTES)
        self._waiting = asyncio.get_running_loop().call_later(self._head_wait_s, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read into."""
        del sizehint
        return self._buffer[:_STRANGER_BYTES] if self.is_stranger else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much has been read."""
        self.heard_s = time.monotonic()  # the loop's own counts milliseconds
        self._received(bytes(self._buffer[:nbytes]))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def pause_writing(self) -> None:
        """The client is slow."""
        if self._then is not None:
            self._then.pause_writing()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._then is not None:
            self._then.resume_writing()

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return None if self._then is None else self._then.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """It is over."""
        self._transport = None
        self._stop_waiting()
        if self._then is not None:
            self._then.connection_lost(error)
        self._registry.remove(self)

    def abort(self) -> None:
        """Cut it off, also in its handshake."""
        if self._transport is not None:
            self._transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()


class HttpConnection(ClientConnection):
    """One of HTTP, which `make` makes the protocol of; `is_at_work` says whether a request with a
    key is being answered on a transport.
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

    @property
    def is_stranger(self) -> bool:
        """Whether no request with a key is being answered."""
        return self._transport is None or not self._is_at_work(self._transport)

    def _received(self, data: bytes) -> None:
        if self._then is None:
            assert self._transport is not None
            self._registry.spoke(self)
            self._then = self._make()
            self._then.connection_made(self._transport)
        if self._waiting is not None:
            if _HEAD_END in self._first + data:
                self._stop_waiting()
            self._first = (self._first + data)[-len(_HEAD_END) + 1 :]
        self._then.data_received(data)


class GrpcConnection(ClientConnection):
    """One of gRPC, relayed to the server at `grpc_socket`; `refusal` answers one of HTTP/1."""

    def __init__(self, grpc_socket: GrpcSocket, refusal: bytes, **port: Any) -> None:
        super().__init__(**port)
        self._grpc_socket = grpc_socket
        self._refusal = refusal
        self._gated: GatedSide | None = None
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_stranger(self) -> bool:
        """Whether no key was shown on it."""
        return self._gated is None or self._gated.gate.is_stranger

    @property
    def waits_for_turn(self) -> bool:
        """Whether it has a call that is not read any further before its turn."""
        return self._gated is not None and self._gated.gate.is_queued

    def _received(self, data: bytes) -> None:
        if self._gated is not None:
            self._gated.data_received(data)
            return
        self._first += data
        assert self._transport is not None
        if self._connecting is not None:
            return  # the relay is being made, and takes all of it
        if not self._first.startswith(PREFACE[: len(self._first)]):
            self._transport.write(self._refusal)
            self._transport.close()
        elif len(self._first) >= len(PREFACE):
            self._registry.spoke(self)
            self._stop_waiting()
            if not self._transport.is_closing():
                self._transport.pause_reading()
                self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        """Connect the two; the client sees a connection that ends when there is no server."""
        if self._transport is None:
            return  # it has gone before it began
        try:
            gated = await self._grpc_socket.connect(self._transport)
        except OSError:
            self.abort()
            return
        if self._transport is None:  # it has gone meanwhile
            gated.connection_lost(None)
            return
        self._then = self._gated = gated
        first, self._first = self._first, b""
        gated.data_received(first)
