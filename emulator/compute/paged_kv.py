"""A chip's KV cache in blocks, addressed by vLLM's block tables.

Per layer, values [kv_heads, blocks, block_tokens * value_dim], keys transposed [kv_heads, key_dim,
blocks, block_tokens]: a decode multiplies few rows by many keys, five times faster in the BLAS
without transposing (DECISIONS.md).
"""

import math
import mmap
from collections.abc import Sequence
from typing import Self

import numpy as np

from emulator.arrays import Float32s, Int64s
from emulator.compute.architecture import Architecture
from emulator.formats.model_formats import FP32_MODEL, ModelFormats

CHUNK_TOKENS = 128
"""Tokens per piece in which contexts are read and summed (see attention)."""


class PagedKv:
    """Keys and values of every layer of one attention replica.

    Block 0 is vLLM's null block and pads block tables. `block_tokens` is a power of two, at most
    `CHUNK_TOKENS`. Keys and values are rounded as `formats` keeps them.
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
        assert CHUNK_TOKENS % block_tokens == 0, block_tokens
        self.block_tokens = block_tokens
        self.blocks = blocks
        self._formats = formats
        self._keys = _untouched_zeros(layers, kv_heads, key_dim, blocks, block_tokens)
        self._values = _untouched_zeros(layers, kv_heads, blocks, block_tokens * value_dim)

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
        latent = arch.latent
        return cls(
            layers=arch.layers + drafts,
            kv_heads=1 if latent else max(1, groups),
            key_dim=latent.cached_width if latent else arch.head_dim,
            value_dim=latent.kv_rank if latent else arch.head_dim,
            blocks=blocks if groups else 1,
            block_tokens=block_tokens,
            formats=formats,
        )

    @property
    def blocks_per_chunk(self) -> int:
        """Blocks in one chunk of a context."""
        return CHUNK_TOKENS // self.block_tokens

    def write(self, layer: int, slots: Int64s, keys: Float32s, values: Float32s) -> None:
        """Store `keys` [tokens, kv_heads, key_dim] and `values` [tokens, kv_heads, value_dim] at
        `slots` [tokens].

        A slot is block * block_tokens + offset.
        """
        keys, values = self._formats.cached(keys), self._formats.cached(values)
        kv_heads, key_dim = keys.shape[1:]
        by_slot = self._keys[layer].reshape(kv_heads, key_dim, -1)
        by_slot[:, :, slots] = keys.transpose(1, 2, 0)  # [kv_heads, key_dim, tokens]
        rows = self._values[layer].reshape(kv_heads, -1, values.shape[2])
        rows[:, slots] = values.transpose(1, 0, 2)  # [kv_heads, tokens, value_dim]

    def read(self, layer: int, tables: Int64s) -> tuple[Float32s, Float32s]:
        """Copy the contexts of `tables` [items, chunks * blocks_per_chunk], unchecked for speed.

        Returns keys [kv_heads, items, chunks, key_dim, CHUNK_TOKENS] and values [kv_heads, items,
        chunks, CHUNK_TOKENS, value_dim].
        """
        items, table_blocks = tables.shape
        chunks = table_blocks // self.blocks_per_chunk
        keys = self._keys[layer].take(tables, axis=2, mode="clip")
        kv_heads, key_dim = keys.shape[:2]  # [kv_heads, key_dim, items, table, block]
        keys = keys.reshape(kv_heads, key_dim, items, chunks, CHUNK_TOKENS)
        values = self._values[layer].take(tables, axis=1, mode="clip")
        return (
            keys.transpose(0, 2, 3, 1, 4),
            values.reshape(kv_heads, items, chunks, CHUNK_TOKENS, -1),
        )

    def read_blocks(self, blocks: Sequence[int]) -> tuple[Float32s, Float32s]:
        """Copy whole blocks of every layer, for another chip with the same heads.

        Returns keys [layers, kv_heads, key_dim, len(blocks), block_tokens] and values [layers,
        kv_heads, len(blocks), block_tokens * value_dim].
        """
        return self._keys[:, :, :, blocks], self._values[:, :, blocks]

    def write_blocks(self, blocks: Sequence[int], keys: Float32s, values: Float32s) -> None:
        """Store what another chip's `read_blocks` returned."""
        self._keys[:, :, :, blocks] = keys
        self._values[:, :, blocks] = values

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block of every layer, for a request that continues a shared block."""
        self._keys[:, :, :, target] = self._keys[:, :, :, source]
        self._values[:, :, target] = self._values[:, :, source]


def _untouched_zeros(*shape: int) -> Float32s:
    """Zeros that take memory only once written, in the host's smallest pages: a huge page would be
    filled at its first token, for each row of the keys.
    """
    pool = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pool.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pool, dtype=np.float32).reshape(shape)
