"""A connected socket that carries whole packets, which tell their own length (see codec).

Time limits are the kernel's: a call past them raises TimeoutError, after which the stream may be
cut within a packet and must be closed.
"""

import socket
import struct
from typing import Final

from emulator.actors.codec import HEAD_BYTES, packet_bytes

PACKET_BYTES_MAX: Final = 1 << 31
"""Far more than a prefill of 8,192 tokens to 8 experts each of 4,096 values (1 GiB)."""


def read_exactly(connected: socket.socket, size: int, *, closed: str) -> bytes:
    """The next `size` bytes, before any packet; raises ConnectionError, which says `closed`."""
    data = b""
    while len(data) < size:
        part = connected.recv(size - len(data))
        if not part:
            raise ConnectionError(closed)
        data += part
    return data


class PacketSocket:
    """Sends and receives packets over `connected`, a stream socket that it owns.

    `timeout_s`: longest wait for room to send, or for more of a packet; None waits for ever.
    """

    def __init__(self, connected: socket.socket, timeout_s: float | None = None) -> None:
        self._socket = connected
        connected.setblocking(True)  # a time limit of Python's would cost a call to poll each time
        seconds = timeout_s or 0.0
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """The socket's file descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, packet: bytes) -> None:
        """Send the whole packet; raises OSError when the other end is gone or stalls."""
        try:
            sent = self._socket.send(packet)
            while sent < len(packet):
                sent += self._socket.send(memoryview(packet)[sent:])
        except BlockingIOError as error:
            raise TimeoutError("the other end takes nothing") from error

    def receive(self) -> bytearray:
        """Return the next packet.

        Raises:
            EOFError: the other end has closed.
            OSError: it broke off or stalled within a packet, or announced one too long.
        """
        try:
            head = self._socket.recv(HEAD_BYTES, socket.MSG_WAITALL)
            if not head:
                raise EOFError("the other end has closed")
            if len(head) < HEAD_BYTES:
                raise ConnectionError("the other end broke off within a packet")
            return self._rest(head)
        except BlockingIOError as error:
            raise TimeoutError("the other end stalled within a packet") from error

    def _rest(self, head: bytes) -> bytearray:
        size = packet_bytes(head)
        if not HEAD_BYTES <= size <= PACKET_BYTES_MAX:
            raise ConnectionError(f"a packet of {size} bytes was announced")
        packet = bytearray(size)
        packet[:HEAD_BYTES] = head
        view = memoryview(packet)
        got = HEAD_BYTES
        while got < size:
            count = self._socket.recv_into(view[got:], 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionError("the other end broke off within a packet")
            got += count
        return packet

    def close(self) -> None:
        """Close the socket; idempotent."""
        self._socket.close()
