"""What two engines tell each other of keys and values: packets of msgpack, which become one of
these types or are refused.
"""

from typing import Final

import msgspec
import numpy as np

from emulator.actors.codec import HEAD_BYTES
from emulator.arrays import Float32s
from emulator.specs.kv_blocks import KvBlocks


class _ToEngine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One message."""


class EngineFacts(_ToEngine, frozen=True, kw_only=True):
    """The first message of both: what an engine's KV is of, and who it is.

    `model` and `system` are those that set bytes and time; `computes`: the blocks have numbers.
    """

    engine_id: str
    system: str
    model: str
    token_bytes: int
    block_tokens: int
    tp: int
    computes: bool

    def misfit(self, other: "EngineFacts") -> str | None:
        """What keeps KV of `other` from being read here; None if nothing does."""
        for name in ("model", "token_bytes", "block_tokens", "system", "computes"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                return f"its {name} is {theirs}, here it is {ours}"
        return None


class Pull(_ToEngine, frozen=True, kw_only=True):
    """Ask for the blocks of a request from `first_block` on; answered by `There` or `Gone`.

    `read` is the reader's name for it: several may ask for the same blocks, of which one gets them.
    `tokens`, `prompt` and `weights` are what they must be of: a prompt's length and digest, and the
    hash of the weights.
    """

    request_id: str
    read: str
    first_block: int
    tokens: int
    prompt: bytes
    weights: str


class BlocksOfChip(_ToEngine, frozen=True, kw_only=True):
    """`KvBlocks` of one of a rank's chips, as bytes of float32."""

    keys: bytes
    keys_shape: tuple[int, ...]
    values: bytes
    values_shape: tuple[int, ...]

    @classmethod
    def of(cls, kv: KvBlocks, first_block: int) -> "BlocksOfChip":
        """Those of the blocks from the first one on."""
        keys, values = kv.keys[:, first_block:], kv.values[:, first_block:]
        return cls(
            keys=keys.tobytes(),
            keys_shape=keys.shape,
            values=values.tobytes(),
            values_shape=values.shape,
        )

    def blocks(self) -> KvBlocks:
        """The arrays, read-only; raises ValueError for bytes of another shape."""
        return KvBlocks(
            keys=_array(self.keys, self.keys_shape), values=_array(self.values, self.values_shape)
        )


class There(_ToEngine, frozen=True, kw_only=True):
    """The blocks asked for, of each chip that attends, in order; none where none has numbers."""

    read: str
    chips: list[BlocksOfChip]


class Gone(_ToEngine, frozen=True, kw_only=True):
    """There is no such KV, or no longer."""

    read: str
    reason: str


class Taken(_ToEngine, frozen=True, kw_only=True):
    """The transfer of `tokens` has ended, and the blocks are needed no more."""

    request_id: str
    read: str
    tokens: int


class Release(_ToEngine, frozen=True, kw_only=True):
    """The blocks are needed no more: a `read` came to nothing, or a request had no need of one."""

    request_id: str
    read: str | None = None


KvMessage = EngineFacts | Pull | There | Gone | Taken | Release

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[KvMessage]] = msgspec.msgpack.Decoder(KvMessage)


def packet_of(message: KvMessage) -> bytes:
    """A packet as `PacketSocket` sends it: its size [8 bytes], zeros [8], the message."""
    body = _ENCODER.encode(message)
    return (HEAD_BYTES + len(body)).to_bytes(8, "little") + bytes(HEAD_BYTES - 8) + body


def message_of(packet: bytearray) -> KvMessage:
    """The message of a packet; raises ConnectionError for none of ours."""
    try:
        return _DECODER.decode(memoryview(packet)[HEAD_BYTES:])
    except msgspec.MsgspecError as error:
        raise ConnectionError(f"a message cannot be decoded: {error}") from error


def _array(data: bytes, shape: tuple[int, ...]) -> Float32s:
    return np.frombuffer(data, dtype=np.float32).reshape(shape)
