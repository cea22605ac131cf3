"""Commands and effects as message frames: a kind, a msgpack header, and the arrays as they are.

No pickle: a message can only become one of the frozen types named here. Arrays are sent without a
copy and received as read-only views of the frame.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from emulator.chip.commands import BeginStep, Combine, RunExperts, Stop
from emulator.chip.effects import Dispatch, ExpertRows, Failed, Ready, StepDone
from emulator.errors import ChannelError

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


class Codec:
    """Encodes and decodes messages; one per thread, since it holds the frames being built."""

    def __init__(self) -> None:
        self._frames: list[Any] = []
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._put_array)
        self._decoders = [
            msgspec.msgpack.Decoder(kind, dec_hook=self._take_array) for kind in _KINDS
        ]

    def encode(self, message: Message) -> list[Any]:
        """Return the frames of `message`: kind, header, arrays."""
        self._frames = []
        header = self._encoder.encode(message)
        return [_KIND_OF[type(message)], header, *self._frames]

    def decode(self, frames: Sequence[Any]) -> Message:
        """Rebuild a message.

        Raises:
            ChannelError: the frames are not those of a known message.
        """
        self._frames = list(frames[2:])
        try:
            decoder = self._decoders[bytes(frames[0])[0]]
            return decoder.decode(frames[1])
        except (IndexError, ValueError, msgspec.MsgspecError) as error:
            raise ChannelError(f"a message cannot be decoded: {error}") from error

    def _put_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} does not travel")
        array = np.ascontiguousarray(value)
        self._frames.append(array.data if array.size else b"")
        return (len(self._frames) - 1, _DTYPES.index(array.dtype.str), array.shape)

    def _take_array(self, _kind: type, value: Any) -> Any:
        index, dtype, shape = value
        array = np.frombuffer(self._frames[index], dtype=_DTYPES[dtype])
        if array.size != math.prod(shape):
            raise ValueError(f"array {index} has {array.size} elements, header says {shape}")
        return array.reshape(shape)
