"""Finds HTTP/2 frames in a stream of bytes in any pieces. Pure.

A frame is a head of 9 bytes with its payload's length, and the unparsed payload:
https://www.rfc-editor.org/rfc/rfc9113#section-4.1. Other bytes are cut arbitrarily, and refused by
the server.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
CONTINUATION: Final = 9

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""Begins each HTTP/2 connection: https://www.rfc-editor.org/rfc/rfc9113#section-3.4."""

HEAD_BYTES: Final = 9
_HEAD: Final = struct.Struct(">BHBxI")  # the length in two parts, the type, flags, the stream
_STREAM_MAX: Final = 2**31 - 1  # the bit above is reserved

MayPass = Callable[[int, int, int], bool]
"""Of a frame's type, stream, and payload in bytes."""


class HeldFrames:
    """One direction's bytes, released frame by frame; holds the rest."""

    __slots__ = ("_held", "_left_bytes")

    def __init__(self) -> None:
        self._held = b""
        self._left_bytes = len(PREFACE)  # of what goes on without a look

    def take(self, data: bytes) -> None:
        """Add received bytes."""
        self._held = self._held + data if self._held else data

    def passing(self, may_pass: MayPass) -> bytes:
        """The bytes up to the first frame that may not pass; `may_pass` accepts each once."""
        data = self._held
        size = len(data)
        at = self._left_bytes
        while at + HEAD_BYTES <= size:
            high, low, kind, stream = _HEAD.unpack_from(data, at)
            payload_bytes = high << 16 | low
            if not may_pass(kind, stream & _STREAM_MAX, payload_bytes):
                break
            at += HEAD_BYTES + payload_bytes
        self._left_bytes = max(at - size, 0)
        self._held = data[at:]
        return data[:at]


class SeenFrames:
    """The other direction's bytes, observed only."""

    __slots__ = ("_left_bytes", "_part")

    def __init__(self) -> None:
        self._left_bytes = 0
        self._part = b""  # of a head

    def answered(self, data: bytes) -> Sequence[int]:
        """The streams answered or ended by frames that begin in `data`."""
        at = self._left_bytes
        if self._part:
            data = self._part + data
        size = len(data)
        found = []
        while at + HEAD_BYTES <= size:
            high, low, kind, stream = _HEAD.unpack_from(data, at)
            if kind in (HEADERS, RST_STREAM):
                found.append(stream & _STREAM_MAX)
            at += HEAD_BYTES + (high << 16 | low)
        self._left_bytes = max(at - size, 0)
        self._part = data[at:]
        return found
