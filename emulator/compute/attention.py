"""Grouped-query attention over a paged context, in pieces of fixed shape.

An *item* is some query rows of one request: a decode is one, a prefill one per query block.
Contexts are padded to whole chunks and chunk sums added first to last, so a token's result has the
same bits alone, in a batch, in one prefill or in several.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from emulator.arrays import Bools, Float32s, Int64s
from emulator.compute.paged_kv import CHUNK_TOKENS, PagedKv
from emulator.compute.tiled_matmul import TILE_ROWS

QUERY_BLOCK_TOKENS = 64
"""New tokens of a prefill attended together; bounds the scores' memory."""

SAFE_SCORE = 60.0
"""exp(60) = 1e26, times any context length here, is far inside float32, and exp(-60) is far above
the smallest normal number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItems:
    """Items of equal size, attended in one call.

    Attributes:
        rows: [items, item_tokens] index of each query token in the batch.
        positions: [items, item_tokens].
        tables: [items, chunks * blocks_per_chunk] block tables, padded with block 0.
    """

    rows: Int64s
    positions: Int64s
    tables: Int64s
    _masks: dict[tuple[int, int], Bools] = field(default_factory=dict, repr=False)

    @property
    def first_masked_chunk(self) -> int:
        """The first chunk with keys after some query."""
        return int(self.positions.min()) // CHUNK_TOKENS

    def future(self, group: int, tile: int) -> Bools:
        """Mask of keys after their query, for `group` heads a key head and rows tiled by `tile`.

        [items, chunks - first_masked_chunk, tiles, tile, CHUNK_TOKENS]; cached for all layers.
        """
        mask = self._masks.get((group, tile))
        if mask is None:
            mask = self._masks[group, tile] = self._make_future(group, tile)
        return mask

    def _make_future(self, group: int, tile: int) -> Bools:
        items, item_tokens = self.positions.shape
        tiles = -(-item_tokens * group // tile)
        last_key = np.zeros((items, tiles * tile), dtype=np.int64)
        last_key[:, : item_tokens * group] = np.repeat(self.positions, group, axis=1)
        end = int(self.positions.max()) // CHUNK_TOKENS + 1
        keys = np.arange(self.first_masked_chunk * CHUNK_TOKENS, end * CHUNK_TOKENS)
        return keys.reshape(-1, 1, 1, CHUNK_TOKENS) > last_key.reshape(items, 1, tiles, tile, 1)


def attend(
    queries: Float32s,
    kv: PagedKv,
    layer: int,
    items: AttentionItems,
    out: Float32s,
    *,
    scores_bounded: bool,
) -> None:
    """Attend `items` of `queries` [tokens, heads, head_dim], causally; writes `out` of the same
    shape.

    `scores_bounded`: no score exceeds `SAFE_SCORE`, so the softmax needs no maximum.
    """
    keys, values = kv.read(layer, items.tables)
    kv_heads, item_count, _, head_dim, _ = keys.shape
    group = queries.shape[1] // kv_heads
    rows = items.rows.shape[1] * group
    tile = tile_rows(rows, head_dim)
    grouped = _gather_rows(queries, items, kv_heads, tile)
    # [kv_heads, items, 1, tiles, tile, head_dim] x [kv_heads, items, chunks, 1, head_dim, CHUNK]
    scores = np.matmul(grouped, keys[:, :, :, None])
    visible_from = scores[:, :, items.first_masked_chunk :]
    np.copyto(visible_from, np.float32(-np.inf), where=items.future(group, tile))
    if not scores_bounded:
        scores -= scores.max(axis=5, keepdims=True).max(axis=2, keepdims=True)
    weights = np.exp(scores, out=scores)
    totals = _sum_chunks(weights.sum(axis=5, keepdims=True))
    mixed = _sum_chunks(np.matmul(weights, values[:, :, :, None]))
    mixed /= totals  # [kv_heads, items, tiles, tile, head_dim]
    flat = mixed.reshape(kv_heads, item_count, -1, head_dim)[:, :, :rows]
    by_token = flat.reshape(kv_heads, item_count, -1, group, head_dim).transpose(1, 2, 0, 3, 4)
    out[items.rows] = by_token.reshape(*items.rows.shape, kv_heads * group, head_dim)


@lru_cache(maxsize=256)
def tile_rows(rows: int, head_dim: int) -> int:
    """Rows to multiply at once: all where the host's BLAS, tested on these very shapes, gives a row
    the same bits in a call of any height; otherwise `TILE_ROWS`.
    """
    whole = rows + rows % 2
    generator = np.random.default_rng(rows)
    queries = generator.standard_normal((-(-whole // TILE_ROWS) * TILE_ROWS, head_dim))
    keys = generator.standard_normal((head_dim, CHUNK_TOKENS)).astype(np.float32)
    values = np.ascontiguousarray(keys.T)
    tall = queries.astype(np.float32)[:whole]
    tiles = queries.astype(np.float32).reshape(-1, TILE_ROWS, head_dim)
    scores = tall @ keys
    tiled_scores = np.matmul(tiles, keys)
    same_scores = np.array_equal(scores, tiled_scores.reshape(-1, CHUNK_TOKENS)[:whole])
    mixed = np.matmul(tiled_scores, values).reshape(-1, head_dim)[:whole]
    return whole if same_scores and np.array_equal(scores @ values, mixed) else TILE_ROWS


def _sum_chunks(partial: Float32s) -> Float32s:
    """Add axis 2 of [kv_heads, items, chunks, ...] first to last, for any memory layout."""
    total = partial[:, :, 0].copy()
    for chunk in range(1, partial.shape[2]):
        total += partial[:, :, chunk]
    return total


def _gather_rows(queries: Float32s, items: AttentionItems, kv_heads: int, tile: int) -> Float32s:
    """Scale queries and lay them out as [kv_heads, items, 1, tiles, tile, head_dim]."""
    item_count, item_tokens = items.rows.shape
    _, heads, head_dim = queries.shape
    rows = item_tokens * (heads // kv_heads)
    tiles = -(-rows // tile)
    picked = queries[items.rows].reshape(item_count, item_tokens, kv_heads, -1, head_dim)
    laid = np.zeros((kv_heads, item_count, tiles * tile, head_dim), dtype=np.float32)
    by_head = picked.transpose(2, 0, 1, 3, 4).reshape(kv_heads, item_count, rows, head_dim)
    np.multiply(by_head, np.float32(head_dim**-0.5), out=laid[:, :, :rows])
    return laid.reshape(kv_heads, item_count, 1, tiles, tile, head_dim)


def scores_are_bounded(
    query_norm: Float32s, key_norm: Float32s, *, rotation_gain: float = 1.0
) -> bool:
    """Whether normalised queries and keys keep every score below `SAFE_SCORE`.

    A normalised vector times its weight [head_dim] is at most sqrt(head_dim) * max|weight| long, so
    a scaled score is at most sqrt(head_dim) * max|query_norm| * max|key_norm| * rotation_gain^2.
    """
    longest = np.abs(query_norm).max() * np.abs(key_norm).max() * rotation_gain**2
    return bool(np.sqrt(len(query_norm)) * longest <= SAFE_SCORE)
