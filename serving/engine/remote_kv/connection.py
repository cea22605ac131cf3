"""A connection of two engines that have proved the operator's key to each other.

As on the chips' channel, what follows the proof is neither encrypted nor signed: between hosts the
network must be trusted.
"""

import contextlib
import select
import socket
import threading
from typing import Final

from emulator.actors.handshake import (
    CLAIM_BYTES,
    GREETING_BYTES,
    WELCOME_BYTES,
    ClientHandshake,
    ServerHandshake,
)
from emulator.actors.packet_socket import PacketSocket, read_exactly
from serving.engine.remote_kv.messages import KvMessage, message_of, packet_of

STALL_WALL_S: Final = 10.0
"""Wall seconds until an engine is given up that stops within the proof of the key or a packet, and
that a port waits for numbers that its engine is about to read.
"""

_NO_CHIP: Final = 0

_CLOSED: Final = "it closed before the key was proved: has it another one?"

_KEPT_ALIVE: Final = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}
"""A host that is gone without a word is found so in half a minute: s, s, times, ms."""


class KvConnection:
    """Messages over a `connected` socket, which it owns; any thread may send, one receives."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEPT_ALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = connected
        self._packets = PacketSocket(connected, STALL_WALL_S)
        self._sending = threading.Lock()

    def send(self, message: KvMessage) -> None:
        """Raises OSError where the other end is gone or stalls."""
        packet = packet_of(message)
        with self._sending:
            self._packets.send(packet)

    def receive(self) -> KvMessage:
        """Wait for a message; raises EOFError or OSError at the connection's end."""
        ready = select.poll()
        try:
            ready.register(self._packets, select.POLLIN)
        except ValueError as error:  # it has no number any more
            raise EOFError("closed on this side") from error
        ready.poll()
        return message_of(self._packets.receive())

    def close(self) -> None:
        """End it, also under a thread that waits for a message."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._packets.close()


def accepted(connected: socket.socket, key: bytes) -> KvConnection:
    """The answering side; raises OSError, also for a stranger."""
    handshake = ServerHandshake(key)
    connected.settimeout(STALL_WALL_S)
    connected.sendall(handshake.greeting)
    _, welcome = handshake.welcome(read_exactly(connected, CLAIM_BYTES, closed=_CLOSED))
    connected.sendall(welcome)
    return KvConnection(connected)


def connected_to(host: str, port: int, key: bytes) -> KvConnection:
    """The asking side; raises OSError, also for a stranger."""
    connected = socket.create_connection((host, port), timeout=STALL_WALL_S)
    try:
        handshake = ClientHandshake(key, _NO_CHIP)
        greeting = read_exactly(connected, GREETING_BYTES, closed=_CLOSED)
        connected.sendall(handshake.claim(greeting))
        handshake.check(read_exactly(connected, WELCOME_BYTES, closed=_CLOSED))
        return KvConnection(connected)
    except BaseException:
        connected.close()
        raise
