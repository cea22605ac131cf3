"""The law of attention in prefill: whole prompts against themselves, causally."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from emulator.arrays import Float64s
from emulator.timing.laws.near_memory import near_ns, overlapped_ns
from emulator.timing.laws.silicon import Constant, Silicon

_QUERY_TILE: Final = 128  # rows of queries that one core keeps still
_ROW_BYTES: Final = 2  # queries, new keys and values, outputs
# Exponent of the norm of products and exponentials, and of computing and moving rows: fitted ones
# (1.7 to 3) predict no machine better.
_OVERLAP: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillAttentionShape:
    """Prompts of equal lengths without a cached prefix, [kernels].

    `window`: keys that a token attends to at most, infinite without one. `width`: elements of a key
    and a value together; `cache_bytes`: of one stored element.
    """

    prompts: Float64s
    tokens: Float64s
    heads: Float64s
    kv_heads: Float64s
    width: Float64s
    cache_bytes: Float64s
    window: Float64s

    @property
    def scores(self) -> Float64s:
        """Pairs of a query and a key that it may attend to, of one head."""
        tokens = self.tokens
        outside = np.maximum(0.0, tokens - self.window)
        scores: Float64s = self.prompts * (tokens * (tokens + 1) - outside * (outside + 1)) / 2
        return scores

    @property
    def flops(self) -> Float64s:
        """Real ones."""
        return 2 * self.heads * self.width * self.scores

    def least_ns(self, silicon: Silicon) -> Float64s:
        """At the matrix engines' peak rate: no kernel is faster."""
        return np.asarray(self.flops / silicon.flops)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillAttentionLaw:
    """Constants of attention in prefill.

    Attributes:
        start_ns: launch, planning, first loads.
        tensor_share, softmax_share: of the matrix engines' rate, and of the exponentials' (above 1
            where other units compute some, as polynomials).
        diagonal_tokens: keys of a query's tile beyond those that it may attend to, masked away.
        tail: of the longest row of tiles, the part that a core still computes when others are done.
        tile_ns: start and end of a tile of queries.
        memory_share: of the rates for rows that come and go.
        near_bytes: of near memory, per ns and core.
    """

    start_ns: Constant
    tensor_share: Constant
    softmax_share: Constant
    diagonal_tokens: Constant
    tail: Constant
    tile_ns: Constant
    memory_share: Constant
    near_bytes: Constant

    def duration_ns(
        self, shape: PrefillAttentionShape, silicon: Silicon, *, in_loop: bool = False
    ) -> Float64s:
        """[kernels]; the same `in_loop`: rows come from the kernel before in any case."""
        del in_loop
        each_ns = overlapped_ns(
            _OVERLAP,
            2 * shape.width / (silicon.flops * self.tensor_share),
            np.ones_like(shape.width) / (silicon.exponentials * self.softmax_share),
        )
        masked = shape.tokens * np.minimum(shape.tokens, self.diagonal_tokens) / 2
        all_ns = each_ns * shape.heads * (shape.scores + shape.prompts * masked)
        longest_ns = self.tail * each_ns * silicon.cores * _QUERY_TILE * shape.tokens
        rows_bytes = (
            shape.prompts
            * shape.tokens
            * shape.width
            * (_ROW_BYTES * shape.heads + (_ROW_BYTES + shape.cache_bytes) * shape.kv_heads)
        )
        moving_ns = near_ns(rows_bytes, silicon, core_bytes=self.near_bytes) / self.memory_share
        tiles = np.ceil(shape.tokens / _QUERY_TILE) * shape.prompts * shape.heads
        total: Float64s = (
            self.start_ns
            + overlapped_ns(_OVERLAP, np.maximum(all_ns, longest_ns), moving_ns)
            + tiles / silicon.cores * self.tile_ns
        )
        return total
