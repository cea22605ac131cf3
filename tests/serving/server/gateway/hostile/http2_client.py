"""An HTTP/2 client that respects the windows and nothing else: hand-made frames.

https://www.rfc-editor.org/rfc/rfc9113; headers go without compression (RFC 7541, section 6.2.2).
"""

import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
_FRAME_BYTES_MAX = 16_384


class Kind(IntEnum):
    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


def frame(kind: Kind, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def headers(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """Of a gRPC call, as HPACK literals that are not indexed."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", method.encode()),
        (b":authority", b"a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    )
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)


def _text(letters: bytes) -> bytes:
    """A string with its length, in HPACK's integers of a 7-bit prefix."""
    if len(letters) < 127:
        return bytes([len(letters)]) + letters
    rest, size = len(letters) - 127, bytearray([127])
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([*size, rest]) + letters


class Http2Client:
    """One connection; a context manager. `frames` counts received ones by kind."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        self.frames: Counter[int] = Counter()
        self.settings: dict[int, int] = {}
        self.is_closed = False
        self.left: dict[int, int] = {}  # streams whose message is not sent to its end
        self._updates: Counter[int] = Counter({0: 65_535})
        self._sent: Counter[int] = Counter()
        self._unread = b""
        self.send(PREFACE + frame(Kind.SETTINGS))

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send unchanged; nothing after the server has closed."""
        if self.is_closed:
            return
        try:
            self._socket.settimeout(5.0)
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def call(self, stream: int, method: str, *more: tuple[bytes, bytes], size: int = 0) -> None:
        """Begin a call with a message of `size` bytes; `push` sends all but the last."""
        self.send(frame(Kind.HEADERS, stream, headers(method, *more), END_HEADERS))
        self.left[stream] = size

    def read(self, seconds: float) -> None:
        """Receive for that long."""
        end_s = time.monotonic() + seconds
        while not self.is_closed and (left_s := end_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(2**16)
            except TimeoutError:
                return
            except OSError:
                data = b""
            self.is_closed = not data
            self._unread += data
            self._take_frames()

    def push(self, seconds: float) -> int:
        """Send what the windows allow of all messages, for that long; returns the bytes sent."""
        end_s, sent = time.monotonic() + seconds, 0
        while not self.is_closed and self.left and time.monotonic() < end_s:
            self.read(0.005)
            sent += sum(self._push_one(stream) for stream in list(self.left))
        return sent

    def _push_one(self, stream: int) -> int:
        sent = self._sent[stream]
        size = self.left[stream]
        windows = (
            self.settings.get(4, 65_535) + self._updates[stream] - sent,
            self._updates[0] - self._sent[0],
        )
        room = min(*windows, _FRAME_BYTES_MAX, 5 + size - 1 - sent)
        if room <= 0:
            return 0
        message = b"\0" + struct.pack(">I", size)
        self.send(frame(Kind.DATA, stream, (message[sent:] + b"\0" * room)[:room]))
        self._sent[stream] += room
        self._sent[0] += room
        return room

    def _take_frames(self) -> None:
        while len(self._unread) >= 9:
            size = int.from_bytes(self._unread[:3], "big")
            if len(self._unread) < 9 + size:
                return
            kind, flags = self._unread[3], self._unread[4]
            stream = int.from_bytes(self._unread[5:9], "big")
            payload, self._unread = self._unread[9 : 9 + size], self._unread[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.frames[kind] += 1
        if kind == Kind.SETTINGS and not flags & ACK:
            for name, value in _settings(payload):
                self.settings[name] = value
            self.send(frame(Kind.SETTINGS, flags=ACK))
        elif kind == Kind.WINDOW_UPDATE:
            self._updates[stream] += int.from_bytes(payload, "big")
        elif kind == Kind.PING and not flags & ACK:
            self.send(frame(Kind.PING, payload=payload, flags=ACK))
        elif kind == Kind.RST_STREAM or (kind == Kind.HEADERS and flags & END_STREAM):
            with contextlib.suppress(KeyError):
                del self.left[stream]


def _settings(payload: bytes) -> Iterable[tuple[int, int]]:
    return struct.iter_unpack(">HI", payload)
