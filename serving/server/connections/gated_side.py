"""The client's side of a splice behind a gate: what its gate does not let go on is not read either.

The server's side tells the gate what it answers.
"""

from collections.abc import Callable
from socket import IPPROTO_TCP, TCP_INFO
from typing import Final

from serving.server.connections.frame_heads import SeenFrames
from serving.server.connections.splice import SplicedSide
from serving.server.connections.stream_gate import BadHeaders, StreamGate
from serving.server.connections.stream_turns import GateClock, PortTurns

_ESTABLISHED: Final = 1
"""tcpi_state of tcp_info (linux/tcp.h), its first byte: TCP_ESTABLISHED of net/tcp_states.h."""


class GatedSide(SplicedSide):
    """The client's; `on_lost` is called at its end."""

    def __init__(self, turns: PortTurns, clock: GateClock) -> None:
        super().__init__()
        self.gate = StreamGate(turns, clock, self._go_on)
        self.on_lost: Callable[[], None] = lambda: None
        self._is_held = False  # the server takes no more

    @property
    def is_stranger(self) -> bool:
        """Whether nobody has shown a key on it."""
        return self.gate.is_stranger

    def took(self) -> None:
        """The server has taken a call on it."""
        self.gate.took()

    def showed(self, key: str) -> None:
        """The server has taken a call on it with the key of this name."""
        self.gate.showed(key)

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
        """The server takes no more."""
        self._is_held = True
        super().hold()

    def release(self) -> None:
        """It does again."""
        self._is_held = False
        if not self.gate.waits:
            super().release()

    def pause_writing(self) -> None:
        """The client is slow."""
        super().pause_writing()
        self.gate.jammed(is_jammed=True)

    def resume_writing(self) -> None:
        """It has caught up."""
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


class WatchedSide(SplicedSide):
    """The server's."""

    def __init__(self, gate: StreamGate) -> None:
        super().__init__()
        self._gate = gate
        self._frames = SeenFrames()

    def data_received(self, data: bytes) -> None:
        """Hand it on, and tell the gate."""
        super().data_received(data)
        if streams := self._frames.answered(data):
            self._gate.answered(streams)
