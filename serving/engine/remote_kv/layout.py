"""Numbers of keys and values as they go from engine to engine: their order, and how many.

Both engines know the layout before anything is asked for, so that a packet has bytes alone: what
is not as many as agreed is refused, and no shape comes from outside.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Self

import msgspec
import numpy as np

from emulator.arrays import Float32s
from emulator.compute.architecture import Architecture
from emulator.specs.kv_blocks import KvBlocks

_Positive = Annotated[int, msgspec.Meta(ge=1)]


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of a rank, in float32: `heads` in all, which its chips divide; a `latent` is one head
    that each of them has. A latent's values, the first of its keys' numbers, do not go.
    """

    layers: _Positive
    heads: _Positive
    key_width: _Positive
    value_width: _Positive
    latent: bool

    @classmethod
    def of(cls, architecture: Architecture) -> Self:
        """That of a model which is computed."""
        key_width, value_width = architecture.kv_widths
        latent = architecture.latent is not None
        return cls(
            layers=architecture.layers,
            heads=1 if latent else architecture.groups,
            key_width=key_width,
            value_width=value_width,
            latent=latent,
        )

    def parts(self, tp: int) -> int:
        """How many chips of a rank of `tp` have a part of their own."""
        return math.gcd(tp, self.heads)

    def block_bytes(self, block_tokens: int) -> int:
        """Of a rank's block."""
        width = self.key_width + self._sent_value_width
        return 4 * block_tokens * self.layers * self.heads * width

    @property
    def _sent_value_width(self) -> int:
        return 0 if self.latent else self.value_width

    def sent(self, kv: tuple[KvBlocks, ...]) -> tuple[KvBlocks, ...]:
        """What goes of a rank's blocks, of each chip."""
        if not self.latent:
            return kv
        keys = kv[0].keys
        return (KvBlocks(keys=keys, values=np.empty((*keys.shape[:3], 0), np.float32)),)

    def whole(self, sent: tuple[KvBlocks, ...]) -> tuple[KvBlocks, ...]:
        """A rank's blocks of what was `sent`."""
        if not self.latent:
            return sent
        (keys,) = (each.keys for each in sent)
        values = keys[..., : self.value_width, :].swapaxes(-1, -2)  # [..., tokens, value_width]
        return (KvBlocks(keys=keys, values=values.reshape(*keys.shape[:3], -1)),)

    def shapes(self, tp: int, *, blocks: int, block_tokens: int) -> list[tuple[int, ...]]:
        """Of keys and values of each part that is sent, as `PagedKv.read_blocks` has them."""
        parts = self.parts(tp)
        outer = self.layers, blocks, self.heads // parts
        keys = *outer, self.key_width, block_tokens
        values = *outer, block_tokens * self._sent_value_width
        return [keys, values] * parts


def numbers_of(
    kv: Sequence[KvBlocks], *, first_block: int, most_bytes: int
) -> Iterator[memoryview]:
    """The bytes of blocks from the first one on: part by part keys, then values, layer by layer;
    at most so many at a time.
    """
    for part in kv:
        for array in (part.keys, part.values) if part.values.size else (part.keys,):
            for layer in array[:, first_block:]:
                numbers = np.ascontiguousarray(layer).data.cast("B")
                for begin in range(0, len(numbers), most_bytes):
                    yield numbers[begin : begin + most_bytes]


class ComingKv:
    """Numbers of a read as they come; `shapes` are of keys and values by turns."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._numbers = np.empty(sum(math.prod(each) for each in shapes), np.float32)
        self._come_bytes = 0

    def add(self, data: bytes) -> None:
        """Take the next ones; raises ConnectionError for more than agreed."""
        end = self._come_bytes + len(data)
        if end > self._numbers.nbytes:
            raise ConnectionError(f"it sends more than the {self._numbers.nbytes} bytes agreed")
        self._numbers.view(np.uint8)[self._come_bytes : end] = np.frombuffer(data, np.uint8)
        self._come_bytes = end

    def whole(self) -> tuple[KvBlocks, ...]:
        """All of them; raises ConnectionError for fewer than agreed."""
        come, agreed = self._come_bytes, self._numbers.nbytes
        if come < agreed:
            raise ConnectionError(f"it sends {come} of the {agreed} bytes agreed")
        ends = np.cumsum([math.prod(each) for each in self._shapes])[:-1]
        flat = np.split(self._numbers, ends) if self._shapes else []
        arrays: list[Float32s] = [
            each.reshape(shape) for each, shape in zip(flat, self._shapes, strict=True)
        ]
        return tuple(
            KvBlocks(keys=keys, values=values)
            for keys, values in zip(arrays[::2], arrays[1::2], strict=True)
        )
