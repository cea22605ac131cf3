"""A connection of the shared port: first it is found out what it speaks, then it is handed on.

HTTP/2 goes on to the gRPC server's own socket by a gate, anything else is HTTP/1's. Who says
nothing, or does not end the head of a first request, is not waited for.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from serving.server.connections.first_bytes import Speech, speech_of
from serving.server.connections.gated_side import GatedSide
from serving.server.connections.grpc_socket import GrpcSocket

HEAD_WAIT_S: Final = 20.0
"""Wall seconds from a connection to the end of its first request's head, as at the HTTP gateway."""

_STRANGER_BYTES: Final = 16 * 2**10
"""That are read at once of who has shown no key. While such a connection waits for its turn they
stay here, and there may be a thousand."""

_HEAD_END: Final = b"\r\n\r\n"

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class ArrivalBooks(Protocol):
    """Who counts connections; each is called once for one that comes, in this order."""

    def came(self, arrival: "Arrival") -> None:
        """It has said nothing yet."""

    def decided(self, arrival: "Arrival") -> None:
        """It is known what it speaks; left out for one that goes before."""

    def went(self, arrival: "Arrival") -> None:
        """It is over."""


class Arrival(asyncio.BufferedProtocol):
    """One connection, from its first byte to its end.

    `http` makes the protocol of one that speaks HTTP/1, or None when there are too many; without it
    such a connection ends. `buffer` is read into, and all connections of a loop can share it.
    """

    def __init__(
        self,
        *,
        grpc_socket: GrpcSocket,
        http: Callable[[], asyncio.Protocol | None] | None,
        head_wait_s: float,
        books: "ArrivalBooks",
        buffer: memoryview,
    ) -> None:
        self.speech: Speech | None = None
        self.heard_s = 0.0  # on the monotonic clock, when it said something last
        self._grpc_socket = grpc_socket
        self._http = http
        self._head_wait_s = head_wait_s
        self._books = books
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._first = b""  # what has come before it is decided; afterwards the head's last bytes
        self._then: asyncio.Protocol | None = None
        self._gated: GatedSide | None = None  # what it is then, of HTTP/2
        self._waiting: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes, and not for ever."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass
        if transport.get_extra_info("sslcontext") is not None:
            # What is not read waits decrypted, and not only with its sender.
            cast("Any", transport).set_read_buffer_limits(high=_STRANGER_BYTES)
        self._books.came(self)
        self._waiting = asyncio.get_running_loop().call_later(self._head_wait_s, self.abort)

    @property
    def is_stranger(self) -> bool:
        """Whether it speaks HTTP/2, and nobody has shown a key on it."""
        if self._gated is not None:
            return self._gated.is_stranger
        return self.speech is Speech.HTTP_2

    @property
    def waits_for_turn(self) -> bool:
        """Whether it has a call that is not read any further before its turn."""
        return self._gated is not None and self._gated.gate.is_queued

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read into."""
        del sizehint
        is_undecided = self.speech is None
        return self._buffer[:_STRANGER_BYTES] if is_undecided or self.is_stranger else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So much has been read."""
        self._received(bytes(self._buffer[:nbytes]))

    def _received(self, data: bytes) -> None:
        """Hand it on, or find out to whom."""
        self.heard_s = time.monotonic()  # the loop's own counts milliseconds
        if self._then is not None:
            if self._waiting is not None:
                self._look_for_head_end(data)
            self._then.data_received(data)
            return
        self._first += data
        if self.speech is not None:
            return  # the way to the gRPC server is being made, and takes all of it
        self.speech = speech_of(self._first)
        if self.speech is None:
            return
        self._books.decided(self)
        if self.speech is Speech.HTTP_1:
            self._begin_http()
        else:
            self._heard()
            self._pause()
            self._connecting = asyncio.get_running_loop().create_task(self._begin_grpc())

    def _begin_http(self) -> None:
        assert self._transport is not None
        if self._http is None:
            self.abort()
            return
        self._then = self._http()
        if self._then is None:
            self._transport.write(_FULL)
            self._transport.close()
            return
        self._then.connection_made(self._transport)
        first, self._first = self._first, b""
        self._look_for_head_end(first)
        self._then.data_received(first)

    def _look_for_head_end(self, data: bytes) -> None:
        if _HEAD_END in self._first + data:
            self._first = b""
            self._heard()
        else:
            self._first = (self._first + data)[-len(_HEAD_END) + 1 :]

    def _heard(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def _begin_grpc(self) -> None:
        """Connect the two; the client sees a connection that ends when there is no server."""
        if self._transport is None:
            return  # it has gone before it began
        try:
            here = await self._grpc_socket.connect(self._transport)
        except OSError:
            self.abort()
            return
        if self._transport is None:  # it has gone meanwhile
            here.connection_lost(None)
            return
        self._then = self._gated = here
        first, self._first = self._first, b""
        here.data_received(first)

    def _pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

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
        self._heard()
        if self._then is not None:
            self._then.connection_lost(error)
        self._books.went(self)

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it is written to; None before the first byte may come, and at the end."""
        return self._transport

    def abort(self) -> None:
        """Cut it off."""
        if self._transport is not None:
            self._transport.abort()
