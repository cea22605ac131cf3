"""Encodes commands and effects as packets: a head, a msgpack header, raw arrays.

No pickle: a packet can only become one of the frozen types of `Command`, `Effect` and their
training counterparts. A received array is a read-only view of its packet.

A packet is its size [8 bytes], kind [2], zeros [2], number of frames [4], each frame's size [8
each], then the frames, each at a multiple of 16 bytes. Frame 0 is the msgpack header; the others
are its arrays. Integers are little-endian.
"""

import math
import struct
from typing import Any, Final, get_args

import msgspec
import numpy as np

from emulator.chip.commands import Command
from emulator.chip.effects import Effect
from emulator.chip.training_commands import TrainingCommand
from emulator.chip.training_effects import TrainingEffect
from emulator.errors import ChannelError, ConfigError

Message = Command | Effect | TrainingCommand | TrainingEffect

HEAD_BYTES: Final = 16
"""Bytes of a packet that tell its size."""

_KINDS: tuple[type[Message], ...] = (
    *get_args(Command),
    *get_args(Effect),
    *get_args(TrainingCommand),
    *get_args(TrainingEffect),
)
_KIND_OF = {kind: index for index, kind in enumerate(_KINDS)}
_DTYPES = ("<f4", "<i4", "<i8")
_ALIGN_BYTES = 16
_PADDING = tuple(bytes(-size % _ALIGN_BYTES) for size in range(_ALIGN_BYTES))
"""Zero padding to a multiple of 16, by the size's remainder."""


class Codec:
    """Encodes and decodes messages; one per thread, since it holds the frames being built."""

    def __init__(self) -> None:
        self._frames: list[Any] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._put_array)
        self._decoders = [
            msgspec.msgpack.Decoder(kind, dec_hook=self._take_array) for kind in _KINDS
        ]

    def encode(self, message: Message) -> bytes:
        """Return `message` as one packet."""
        arrays: list[Any] = []
        self._frames = arrays
        header = self._encoder.encode(message)
        sizes = [len(header), *map(len, arrays)]
        count = len(sizes)
        parts = [b"", _PADDING[8 * count % _ALIGN_BYTES], header, _PADDING[len(header) % 16]]
        for frame, size in zip(arrays, sizes[1:], strict=True):
            parts += (frame, _PADDING[size % _ALIGN_BYTES])
        total = HEAD_BYTES + 8 * count + sum(map(len, parts))
        kind = _KIND_OF[type(message)]
        parts[0] = struct.pack(f"<QHHI{count}Q", total, kind, 0, count, *sizes)
        return b"".join(parts)

    def decode(self, packet: bytes | bytearray) -> Message:
        """Rebuild a message; raises ChannelError when the packet is not one of a known kind."""
        try:
            self._frames, kind = _split(packet)
            return self._decoders[kind].decode(self._frames[0])
        except (IndexError, ValueError, struct.error, msgspec.MsgspecError, ConfigError) as error:
            raise ChannelError(f"a message cannot be decoded: {error}") from error

    def _put_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} does not travel")
        array = np.ascontiguousarray(value)
        self._frames.append(array.data.cast("B") if array.size else b"")
        return (len(self._frames), _DTYPES.index(array.dtype.str), array.shape)

    def _take_array(self, _kind: type, value: Any) -> Any:
        index, dtype, shape = value
        array = np.frombuffer(self._frames[index], dtype=_DTYPES[dtype])
        if array.size != math.prod(shape):
            raise ValueError(f"array {index} has {array.size} elements, header says {shape}")
        return array.reshape(shape)


def packet_bytes(head: bytes) -> int:
    """The size of the packet that begins with `head` [HEAD_BYTES]."""
    return int.from_bytes(head[:8], "little")


def _split(packet: bytes | bytearray) -> tuple[list[memoryview], int]:
    total, kind, _, count = struct.unpack_from("<QHHI", packet)
    start = HEAD_BYTES + 8 * count
    if total != len(packet) or start > total:
        raise ValueError("the packet is shorter than its frames' sizes")
    sizes = struct.unpack_from(f"<{count}Q", packet, HEAD_BYTES)
    view = memoryview(packet).toreadonly()
    frames = []
    for size in sizes:
        start += -start % _ALIGN_BYTES
        if start + size > total:
            raise ValueError("the packet is shorter than its sizes say")
        frames.append(view[start : start + size])
        start += size
    return frames, kind
