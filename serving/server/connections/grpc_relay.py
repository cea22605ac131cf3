"""A port's gRPC connection, relayed to the server through its stream gate.

Neither side is read while the other's buffer is full or the gate holds, so back-pressure passes
through. A half-close is relayed as one, a loss as a close.
"""

import asyncio
import secrets
from pathlib import Path
from socket import IPPROTO_TCP, TCP_INFO
from typing import Any, Final, cast

from serving.server.connections.client_connection import ClientConnection
from serving.server.connections.frame_heads import PREFACE, SeenFrames
from serving.server.connections.private_socket import connected
from serving.server.connections.stream_gate import BadHeaders, StreamGate
from serving.server.connections.stream_turns import GateClock, PortTurns

FLUSH_WALL_S_MAX: Final = 5.0
"""For one side to take the last bytes of a lost other side."""

_ESTABLISHED: Final = 1
"""tcpi_state of tcp_info (linux/tcp.h), its first byte: TCP_ESTABLISHED of net/tcp_states.h."""


_PEER: Final = "unix-abstract:"
"""gRPC's prefix of a client's socket name."""


class RelaySide(asyncio.BaseProtocol):
    """One of two connections; `join` pairs them before any bytes."""

    _transport: asyncio.Transport | None = None
    _other: "RelaySide | None" = None
    _at_end = False
    _cut_off: asyncio.TimerHandle | None = None

    def join(self, other: "RelaySide") -> None:
        """Pair the two."""
        self._other, other._other = other, self

    def hand_on(self, data: bytes) -> None:
        """Write to the other side."""
        if (to := self._open_beyond()) is not None:
            to.write(data)

    def pause_writing(self) -> None:
        """Stop reading the other side."""
        if self._other is not None:
            self._other.hold()

    def resume_writing(self) -> None:
        """Read the other side again."""
        if self._other is not None:
            self._other.release()

    def hold(self) -> None:
        """Stop reading this side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def release(self) -> None:
        """Read this side again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """End this direction; True keeps the other open, which TLS cannot."""
        to, self._at_end = self._open_beyond(), True
        assert self._other is not None
        assert self._transport is not None
        if to is None or self._other._at_end or not to.can_write_eof():
            return False  # which closes this side, and with it the other
        to.write_eof()
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        """Flush and end the other side."""
        self._transport = None
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self._other is not None:
            self._other.close()
        super().connection_lost(error)

    def close(self) -> None:
        """End this side once it is flushed, or after FLUSH_WALL_S_MAX."""
        transport = self._transport
        if transport is None or self._cut_off is not None:
            return
        transport.close()
        loop = asyncio.get_running_loop()
        self._cut_off = loop.call_later(FLUSH_WALL_S_MAX, transport.abort)

    def _open_beyond(self) -> asyncio.Transport | None:
        to = None if self._other is None else self._other._transport
        return None if to is None or to.is_closing() else to


class ServerSide(RelaySide, asyncio.Protocol):
    """The server's side; reports answered streams to the gate."""

    def __init__(self, gate: StreamGate) -> None:
        self._gate = gate
        self._frames = SeenFrames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        """Relay, and report to the gate."""
        self.hand_on(data)
        if streams := self._frames.answered(data):
            self._gate.answered(streams)


class GrpcConnection(RelaySide, ClientConnection):
    """The client's side: HTTP/2 is relayed to `server` through `gate`, HTTP/1 answered by
    `refusal`.

    `name` identifies it to the server; unique and unguessable.
    """

    def __init__(self, server: "GrpcSocket", refusal: bytes, **port: Any) -> None:
        super().__init__(**port)
        self.name = f"ultraserve-{secrets.token_hex(16)}"
        self.gate = StreamGate(server.turns, server.clock, self._go_on)
        self._server = server
        self._refusal = refusal
        self._first: bytes | None = b""  # what has come before the relay; None once it is made
        self._connecting: asyncio.Task[None] | None = None
        self._is_held = False  # the server takes no more

    @property
    def is_stranger(self) -> bool:
        """Whether it has shown no key."""
        return self.gate.is_stranger

    @property
    def waits_for_turn(self) -> bool:
        """Whether a call waits unread for its turn."""
        return self.gate.is_queued

    def _received(self, data: bytes) -> None:
        if self._first is None:
            self._pass(data)
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
        """Make the relay; cuts off the client without a server."""
        if self._transport is None:
            return  # it has gone before it began
        side = ServerSide(self.gate)
        self.join(side)  # before the server can say anything
        try:
            await self._server.connect(self, side)
        except OSError:
            self.abort()
            return
        if self._transport is None:  # it has gone meanwhile
            side.close()
        else:
            self.begin_relay()

    def begin_relay(self) -> None:
        """Relay the buffered bytes, and all later ones."""
        first, self._first = self._first, None
        self._pass(first or b"")

    def _go_on(self) -> None:
        if self._has_gone:
            self.abort()
        else:
            self._pass(b"")

    @property
    def _has_gone(self) -> bool:
        """Whether the client has closed, which goes unnoticed while nothing is read; gRPC's core
        treats a half-close as an end.
        """
        if self._transport is None or self._transport.is_closing():
            return True
        socket = self._transport.get_extra_info("socket")
        try:
            return bool(socket.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0] != _ESTABLISHED)
        except OSError:
            return True

    def _pass(self, data: bytes) -> None:
        try:
            passing = self.gate.take(data)
        except BadHeaders:
            self.abort()
            return
        if passing:
            self.hand_on(passing)
        if self.gate.waits:
            super().hold()
        elif not self._is_held:
            super().release()

    def hold(self) -> None:
        """Stop reading: the server's buffer is full."""
        self._is_held = True
        super().hold()

    def release(self) -> None:
        """Read again, unless the gate holds."""
        self._is_held = False
        if not self.gate.waits:
            super().release()

    def pause_writing(self) -> None:
        """The client's buffer is full."""
        super().pause_writing()
        self.gate.jammed(is_jammed=True)

    def resume_writing(self) -> None:
        """The client's buffer has room."""
        super().resume_writing()
        self.gate.jammed(is_jammed=False)

    def eof_received(self) -> bool:
        """End this direction; closes a connection without a relay."""
        return self._first is None and super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """Leave the gate and the names."""
        self.gate.leave()
        self._server.names.remove(self)
        super().connection_lost(error)


class NamedConnections:
    """One port's connections by their names at the server, which reports on them.

    Clients that reach the server another way are ignored.
    """

    def __init__(self) -> None:
        self._by_peer: dict[str, GrpcConnection] = {}

    def add(self, connection: GrpcConnection) -> None:
        """Add it until `remove`."""
        self._by_peer[_PEER + connection.name] = connection

    def remove(self, connection: GrpcConnection) -> None:
        """Remove it; idempotent."""
        self._by_peer.pop(_PEER + connection.name, None)

    def took(self, peer: str) -> None:
        """The server has taken a call of `peer` (gRPC's spelling)."""
        if (known := self._by_peer.get(peer)) is not None:
            known.gate.took()

    def showed(self, peer: str, key: str) -> None:
        """The server has taken a call of `peer` with this key."""
        if (known := self._by_peer.get(peer)) is not None:
            known.gate.showed(key)

    def cut_off_stranger(self, peer: str) -> None:
        """Cut off `peer`, unless it has shown a key."""
        if (known := self._by_peer.get(peer)) is not None and known.gate.is_stranger:
            known.abort()

    def cut_off(self, peer: str) -> None:
        """Cut off `peer`."""
        if (known := self._by_peer.get(peer)) is not None:
            known.abort()


class GrpcSocket:
    """The gRPC server that listens at `path` and reports to `names`.

    Made in the loop whose clock times the `turns` of all connections.
    """

    def __init__(self, path: Path, names: NamedConnections | None = None) -> None:
        self.names = names or NamedConnections()
        self.clock: GateClock = asyncio.get_running_loop()
        self.turns = PortTurns(self.clock)
        self._path = path

    async def connect(self, client: GrpcConnection, side: ServerSide) -> None:
        """Connect `side` under the name of `client`; raises OSError."""
        self.names.add(client)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: side, sock=connected(self._path, client.name))
