"""A chip's KV cache in blocks, addressed by vLLM's block tables.

Per layer, values [blocks, kv_heads, block_tokens * value_dim], keys transposed within a block
[blocks, kv_heads, key_dim, block_tokens]: few rows are multiplied by many keys, which lie side by
side.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Self

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import Architecture
from emulator.compute.layer_kernel import write_slots
from emulator.formats.model_formats import FP32_MODEL, ModelFormats


class PagedKv:
    """Keys and values of every layer of one attention replica.

    Block 0 is vLLM's null block and pads block tables. `block_tokens` is a power of two.
    Keys and values are rounded as `formats` keeps them.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        blocks: int,
        block_tokens: int,
        formats: ModelFormats = FP32_MODEL,
    ) -> None:
        assert block_tokens.bit_count() == 1, block_tokens
        self.block_tokens = block_tokens
        self.blocks = blocks
        self._formats = formats
        self._keys = _untouched_zeros(layers, blocks, kv_heads, key_dim, block_tokens)
        self._values = _untouched_zeros(layers, blocks, kv_heads, block_tokens * value_dim)

    @classmethod
    def of(
        cls,
        arch: Architecture,
        *,
        groups: int,
        blocks: int,
        block_tokens: int,
        drafts: bool = False,
        formats: ModelFormats = FP32_MODEL,
    ) -> Self:
        """The pool of a chip with `groups` head groups; one without any keeps no more than a block.

        With `drafts`, the layer that drafts is the last of its layers.

        A latent is one head that all groups share, its values the first `kv_rank` of its keys.
        """
        key_dim, value_dim = arch.kv_widths
        return cls(
            layers=arch.layers + drafts,
            kv_heads=1 if arch.latent else max(1, groups),
            key_dim=key_dim,
            value_dim=value_dim,
            blocks=blocks if groups else 1,
            block_tokens=block_tokens,
            formats=formats,
        )

    def write(self, layer: int, slots: Int64s, keys: Float32s, values: Float32s) -> None:
        """Store `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] at
        `slots` [tokens].

        A slot is block * block_tokens + offset.
        """
        keys, values = (np.ascontiguousarray(self._formats.cached(each)) for each in (keys, values))
        write_slots(self._keys[layer], self._values[layer], slots, keys, values)

    def check(self, tables: Int64s) -> None:
        """Raise IndexError for a block that the pool does not have: kernels do not look."""
        lowest, highest = int(tables.min()), int(tables.max())
        if lowest < 0 or highest >= self.blocks:
            wrong = lowest if lowest < 0 else highest
            raise IndexError(f"block {wrong}: the pool has {self.blocks} blocks")

    @property
    def pools(self) -> tuple[Float32s, Float32s]:
        """All layers' keys and values, [layers, ...] of what `layer` returns."""
        return self._keys, self._values

    def layer(self, layer: int) -> tuple[Float32s, Float32s]:
        """A layer's keys [blocks, kv_heads, key_dim, block_tokens] and values [blocks, kv_heads,
        block_tokens * value_dim]; views.
        """
        return self._keys[layer], self._values[layer]

    def read_blocks(self, blocks: Sequence[int]) -> tuple[Float32s, Float32s]:
        """Copy whole blocks of every layer, for another chip with the same heads.

        Returns keys [layers, len(blocks), kv_heads, key_dim, block_tokens] and values [layers,
        len(blocks), kv_heads, block_tokens * value_dim].
        """
        return self._keys[:, blocks], self._values[:, blocks]

    def write_blocks(self, blocks: Sequence[int], keys: Float32s, values: Float32s) -> None:
        """Store what another chip's `read_blocks` returned."""
        self._keys[:, blocks] = keys
        self._values[:, blocks] = values

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of every layer, for a request that continues a shared block."""
        self._keys[:, target] = self._keys[:, source]
        self._values[:, target] = self._values[:, source]


def _untouched_zeros(*shape: int) -> Float32s:
    """Zeros that take memory only once written, in the host's smallest pages: a huge page would be
    filled at its first token.
    """
    pool = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pool.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pool, dtype=np.float32).reshape(shape)
