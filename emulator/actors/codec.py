"""Commands and effects as packets: a kind, a msgpack header, and the arrays as they are.

No pickle: a packet can only become one of the frozen types named here. A received array is a
read-only view of its packet.

A packet is: kind [1 byte], frames [3 bytes], the size of each frame [8 bytes each], then the
frames, each starting at a multiple of 16 bytes. Frame 0 is the header; the others are its arrays.
Integers are little-endian.
"""

import math
from typing import Any

import msgspec
import numpy as np

from emulator.chip.commands import BeginStep, Combine, RunExperts, Stop
from emulator.chip.effects import Dispatch, ExpertRows, Failed, Ready, StepDone
from emulator.errors import ChannelError, ConfigError

Message = (
    BeginStep | Combine | RunExperts | Stop | Dispatch | ExpertRows | Failed | Ready | StepDone
)

_KINDS: tuple[type[Message], ...] = (
    BeginStep,
    Combine,
    RunExperts,
    Stop,
    Dispatch,
    ExpertRows,
    Failed,
    Ready,
    StepDone,
)
_KIND_OF = {kind: bytes([index]) for index, kind in enumerate(_KINDS)}
_DTYPES = ("<f4", "<i4", "<i8")
_ALIGN_BYTES = 16


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
        self._frames = []
        header = self._encoder.encode(message)
        frames = [header, *self._frames]
        parts = [_KIND_OF[type(message)], len(frames).to_bytes(3, "little")]
        sizes = [memoryview(frame).nbytes for frame in frames]
        parts += [size.to_bytes(8, "little") for size in sizes]
        parts.append(_padding(4 + 8 * len(sizes)))
        for frame, size in zip(frames, sizes, strict=True):
            parts += (frame, _padding(size))
        return b"".join(parts)

    def decode(self, packet: bytes) -> Message:
        """Rebuild a message.

        Raises:
            ChannelError: the packet is not that of a known message.
        """
        try:
            self._frames = _split(packet)
            decoder = self._decoders[packet[0]]
            return decoder.decode(self._frames[0])
        except (IndexError, ValueError, msgspec.MsgspecError, ConfigError) as error:
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


def _padding(size: int) -> bytes:
    """Zeros that bring `size` to a multiple of 16."""
    return bytes(-size % _ALIGN_BYTES)


def _split(packet: bytes) -> list[memoryview]:
    """Cut a packet into its frames; raises ValueError when sizes and packet disagree."""
    view = memoryview(packet)
    count = int.from_bytes(view[1:4], "little")
    start = 4 + 8 * count
    if start > len(view):
        raise ValueError("the packet is shorter than its frames' sizes")
    sizes = [int.from_bytes(view[4 + 8 * n : 12 + 8 * n], "little") for n in range(count)]
    frames = []
    for size in sizes:
        start += -start % _ALIGN_BYTES
        if start + size > len(view):
            raise ValueError("the packet is shorter than its sizes say")
        frames.append(view[start : start + size])
        start += size
    return frames
