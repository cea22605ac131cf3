"""Relays a client's connection to the gRPC server behind a port, through the gate of its streams.

Neither side is read while the other one's buffer is full, so that a slow reader holds its writer
back as it would without a relay. An end is handed on as an end, a loss as a close. What the gate
holds is not read any further either.
"""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from socket import IPPROTO_TCP, TCP_INFO
from typing import Final, cast

from serving.server.connections.frame_heads import SeenFrames
from serving.server.connections.private_socket import connected
from serving.server.connections.stream_gate import BadHeaders, StreamGate
from serving.server.connections.stream_turns import GateClock, PortTurns

FLUSH_WALL_S_MAX: Final = 5.0
"""What a side has to take the last bytes once the other one has gone; then it is cut off."""

_ESTABLISHED: Final = 1
"""tcpi_state of tcp_info (linux/tcp.h), its first byte: TCP_ESTABLISHED of net/tcp_states.h."""


_PEER: Final = "unix-abstract:"
"""Before the name of a client's socket, as gRPC's core writes it."""


class RelaySide(asyncio.Protocol):
    """One of two connections; `join` makes them each other's before anything comes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._other: RelaySide | None = None
        self._at_end = False
        self._cut_off: asyncio.TimerHandle | None = None

    def join(self, other: "RelaySide") -> None:
        """Make the two each other's."""
        self._other, other._other = other, self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        """Hand it on."""
        if (to := self._open_beyond()) is not None:
            to.write(data)

    def pause_writing(self) -> None:
        """Stop reading the other side: this one is slow."""
        if self._other is not None:
            self._other.hold()

    def resume_writing(self) -> None:
        """Read the other side again: this one has caught up."""
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
        """End this direction; True: the other direction goes on, which TLS does not know."""
        to, self._at_end = self._open_beyond(), True
        assert self._other is not None
        if to is None or self._other._at_end or not to.can_write_eof():
            return False  # which closes this side, and with it the other
        to.write_eof()
        assert self._transport is not None
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, error: Exception | None) -> None:
        """Send the other side what has come, and end it."""
        del error
        self._transport = None
        if self._cut_off is not None:
            self._cut_off.cancel()
        if self._other is not None:
            self._other.close()

    def close(self) -> None:
        """End this side once it has taken what is left, or after FLUSH_WALL_S_MAX."""
        transport = self._transport
        if transport is None or self._cut_off is not None:
            return
        transport.close()
        loop = asyncio.get_running_loop()
        self._cut_off = loop.call_later(FLUSH_WALL_S_MAX, transport.abort)

    def _open_beyond(self) -> asyncio.Transport | None:
        to = None if self._other is None else self._other._transport
        return None if to is None or to.is_closing() else to


class GatedSide(RelaySide):
    """The client's side; `on_lost` is called at its end."""

    def __init__(self, turns: PortTurns, clock: GateClock) -> None:
        super().__init__()
        self.gate = StreamGate(turns, clock, self._go_on)
        self.on_lost: Callable[[], None] = lambda: None
        self._is_held = False  # the server takes no more

    def data_received(self, data: bytes) -> None:
        """Hand on what may go on."""
        try:
            self._hand_on(self.gate.take(data))
        except BadHeaders:
            self.cut_off()

    def _go_on(self) -> None:
        if self._has_gone:
            self.cut_off()
            return
        try:
            self._hand_on(self.gate.more())
        except BadHeaders:
            self.cut_off()

    @property
    def _has_gone(self) -> bool:
        """Whether the client has ended the connection, which is not seen where nothing is read; it
        hears no answer then, as gRPC's core takes an end.
        """
        if self._transport is None or self._transport.is_closing():
            return True
        socket = self._transport.get_extra_info("socket")
        try:
            return bool(socket.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0] != _ESTABLISHED)
        except OSError:
            return True

    def _hand_on(self, data: bytes) -> None:
        if data:
            super().data_received(data)
        if self.gate.waits:
            super().hold()
        elif not self._is_held:
            super().release()

    def hold(self) -> None:
        """Stop reading: the server takes no more."""
        self._is_held = True
        super().hold()

    def release(self) -> None:
        """Read again, unless the gate holds."""
        self._is_held = False
        if not self.gate.waits:
            super().release()

    def pause_writing(self) -> None:
        """The client is slow."""
        super().pause_writing()
        self.gate.jammed(is_jammed=True)

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        self.gate.jammed(is_jammed=False)

    def connection_lost(self, error: Exception | None) -> None:
        """The client has gone."""
        self.gate.leave()
        self.on_lost()
        super().connection_lost(error)

    def cut_off(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()


class WatchedSide(RelaySide):
    """The server's side; tells the gate which streams are answered."""

    def __init__(self, gate: StreamGate) -> None:
        super().__init__()
        self._gate = gate
        self._frames = SeenFrames()

    def data_received(self, data: bytes) -> None:
        """Hand it on, and tell the gate."""
        super().data_received(data)
        if streams := self._frames.answered(data):
            self._gate.answered(streams)


class NamedConnections:
    """One port's connections by the names that the server behind it knows them by.

    The server reports that it has taken a call, that a key was shown, or that a connection should
    end. A client that reaches the server some other way has no name here, and is left alone. No
    name is used twice, and none can be guessed.
    """

    def __init__(self) -> None:
        self._by_peer: dict[str, GatedSide] = {}

    def add(self, side: GatedSide) -> str:
        """Its name, as a socket is bound to it; it lasts until the connection ends."""
        name = f"ultraserve-{secrets.token_hex(16)}"
        self._by_peer[_PEER + name] = side
        side.on_lost = lambda: self.remove(name)
        return name

    def remove(self, name: str) -> None:
        """Forget it; idempotent."""
        self._by_peer.pop(_PEER + name, None)

    def took(self, peer: str) -> None:
        """The server has taken a call of `peer`, as gRPC calls it."""
        if (side := self._by_peer.get(peer)) is not None:
            side.gate.took()

    def showed(self, peer: str, key: str) -> None:
        """The server has taken a call of `peer` with the key of this name."""
        if (side := self._by_peer.get(peer)) is not None:
            side.gate.showed(key)

    def cut_off_stranger(self, peer: str) -> None:
        """End the connection of `peer` at once, unless a key was shown on it."""
        if (side := self._by_peer.get(peer)) is not None and side.gate.is_stranger:
            side.cut_off()

    def cut_off(self, peer: str) -> None:
        """End the connection of `peer` at once."""
        if (side := self._by_peer.get(peer)) is not None:
            side.cut_off()


class GrpcSocket:
    """The gRPC server that listens at `path`, and tells `names` what it learns of its callers.

    Made in the loop that it connects in.
    """

    def __init__(self, path: Path, names: NamedConnections | None = None) -> None:
        self._path = path
        self._names = names or NamedConnections()
        self._turns = PortTurns(asyncio.get_running_loop())

    async def connect(self, client: asyncio.Transport) -> GatedSide:
        """The client's side of a new connection to the server; raises OSError."""
        loop = asyncio.get_running_loop()
        here = GatedSide(self._turns, loop)
        beyond = WatchedSide(here.gate)
        here.join(beyond)
        here.connection_made(client)  # before the server can say anything
        name = self._names.add(here)
        try:
            await loop.create_unix_connection(lambda: beyond, sock=connected(self._path, name))
        except OSError:
            self._names.remove(name)
            raise
        return here
