"""The law of attention in decode: one query row a request against its cached context."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.near_memory import (
    kept_share,
    least_ns,
    overlapped_ns,
    stored_ns,
)
from emulator.timing.laws.silicon import Constant, Silicon

_ROW_BYTES: Final = 2  # queries and outputs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeAttentionShape:
    """Requests of equal contexts, [kernels].

    A cached token has `token_bytes` for each of `kv_heads` (one for a latent, which all heads
    read); a query head multiplies `width` elements with it, keys' and values' together.
    """

    requests: Float64s
    context_tokens: Float64s
    heads: Float64s
    kv_heads: Float64s
    token_bytes: Float64s
    width: Float64s

    @property
    def cache_bytes(self) -> Float64s:
        """Of all contexts, once."""
        return self.requests * self.context_tokens * self.kv_heads * self.token_bytes

    @property
    def flops(self) -> Float64s:
        """Real ones."""
        return 2 * self.requests * self.context_tokens * self.heads * self.width

    def least_ns(self, silicon: Silicon) -> Float64s:
        """No kernel is faster."""
        return least_ns(self.flops, self.cache_bytes, silicon)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeAttentionLaw:
    """Constants of attention in decode.

    Attributes:
        start_ns: launch, reading the block table, queries.
        memory_share, tensor_share: of HBM's and the matrix engines' rate.
        query_rows: rows that the matrix engine is charged at least for the heads of a group.
        chunk_tokens: the least context that is worth a core of its own.
        reread: of the cache, by each further head of a group: 0 where a group shares one load, 1
            where each head is computed by itself.
        wave_ns: each such part of a request beyond one a core.
        combine_ns: adding up the parts of a divided context.
        overlap: exponent of the norm of products' and loads' times.
        copies, near_bytes: as in `ProductLaw`.
    """

    start_ns: Constant
    memory_share: Constant
    tensor_share: Constant
    query_rows: Constant
    chunk_tokens: Constant
    reread: Constant
    wave_ns: Constant
    combine_ns: Constant
    overlap: Constant
    copies: Constant
    near_bytes: Constant

    def duration_ns(
        self, shape: DecodeAttentionShape, silicon: Silicon, *, in_loop: bool = False
    ) -> Float64s:
        """[kernels]; `in_loop`: as benchmarks run it."""
        group = shape.heads / shape.kv_heads
        loads = 1 + self.reread * (group - 1)  # of each KV head
        units = shape.requests * shape.kv_heads * loads
        parts = np.clip(
            silicon.cores / units, 1.0, np.maximum(1.0, shape.context_tokens / self.chunk_tokens)
        )
        busy = np.minimum(1.0, units * parts / silicon.cores)
        kept = np.zeros_like(units)
        if in_loop:
            kept = kept_share(shape.cache_bytes, silicon, copies=self.copies)
        loaded_ns = stored_ns(
            shape.cache_bytes * loads,
            kept,
            silicon,
            memory_share=self.memory_share,
            core_bytes=self.near_bytes,
        )
        rows = np.maximum(group / loads, self.query_rows)
        issued = 2 * units * rows * shape.width * shape.context_tokens
        products_ns = issued / (silicon.flops * self.tensor_share * busy)
        rows_ns = shape.requests * shape.heads * shape.width * _ROW_BYTES / silicon.hbm_bytes
        waiting = (np.maximum(1.0, units / silicon.cores) - 1) * self.wave_ns
        total: Float64s = (
            self.start_ns
            + self.combine_ns * (1 - 1 / parts)
            + rows_ns
            + overlapped_ns(self.overlap, loaded_ns / busy, products_ns)
            + waiting
        )
        return total
