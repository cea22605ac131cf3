"""Attention over a paged context, in pieces of fixed shape; heads may share keys and values.

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
    _masks: dict[tuple[int, int, int], Bools] = field(default_factory=dict, repr=False)

    def first_chunk(self, window: int) -> int:
        """The first chunk with keys that some query attends to, with a `window` of tokens or 0."""
        return max(0, int(self.positions.min()) + 1 - window) // CHUNK_TOKENS if window else 0

    def first_masked_chunk(self, window: int) -> int:
        """The first chunk with keys that some query does not attend to."""
        return self.first_chunk(window) if window else int(self.positions.min()) // CHUNK_TOKENS

    def unseen(self, group: int, tile: int, window: int) -> Bools:
        """Mask of keys after their query or before its `window`, for `group` heads a key head and
        rows tiled by `tile`.

        [items, chunks from first_masked_chunk, tiles, tile, CHUNK_TOKENS]; cached for all layers.
        """
        mask = self._masks.get((group, tile, window))
        if mask is None:
            mask = self._masks[group, tile, window] = self._make_unseen(group, tile, window)
        return mask

    def _make_unseen(self, group: int, tile: int, window: int) -> Bools:
        items, item_tokens = self.positions.shape
        tiles = -(-item_tokens * group // tile)
        # Rows that pad a tile see what the first query sees.
        last_key = np.repeat(self.positions[:, :1], tiles * tile, axis=1)
        last_key[:, : item_tokens * group] = np.repeat(self.positions, group, axis=1)
        end = int(self.positions.max()) // CHUNK_TOKENS + 1
        in_row = np.arange(self.first_masked_chunk(window) * CHUNK_TOKENS, end * CHUNK_TOKENS)
        keys = in_row.reshape(-1, 1, 1, CHUNK_TOKENS)
        last = last_key.reshape(items, 1, tiles, tile, 1)
        future: Bools = keys > last
        return future | (keys <= last - window) if window else future


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How a layer's scores are made.

    Attributes:
        scale: factor of a query's product with a key.
        bounded: no score exceeds `SAFE_SCORE`, so the softmax needs no maximum.
        window: the last tokens that a token attends to, itself included; 0 for all.
        sinks: [heads] scores without a value, which take their share of the softmax.
    """

    scale: float
    bounded: bool = False
    window: int = 0
    sinks: Float32s | None = None


def attend(
    queries: Float32s,
    kv: PagedKv,
    layer: int,
    items: AttentionItems,
    out: Float32s,
    scoring: Scoring,
) -> None:
    """Attend `items` of `queries` [tokens, heads, key_dim], causally; writes `out` [tokens, heads,
    value_dim].
    """
    first = items.first_chunk(scoring.window)
    keys, values = kv.read(layer, items.tables[:, first * kv.blocks_per_chunk :])
    kv_heads, item_count, _, key_dim, _ = keys.shape
    value_dim = values.shape[-1]
    group = queries.shape[1] // kv_heads
    rows = items.rows.shape[1] * group
    tile = tile_rows(rows, key_dim, value_dim)
    grouped = _gather_rows(queries, items, kv_heads, tile, scoring.scale)
    # [kv_heads, items, 1, tiles, tile, key_dim] x [kv_heads, items, chunks, 1, key_dim, CHUNK]
    scores = np.matmul(grouped, keys[:, :, :, None])
    masked = scores[:, :, items.first_masked_chunk(scoring.window) - first :]
    np.copyto(masked, np.float32(-np.inf), where=items.unseen(group, tile, scoring.window))
    sinks = _lay_sinks(scoring.sinks, grouped.shape[:5], group)
    if not scoring.bounded:
        largest = scores.max(axis=5, keepdims=True).max(axis=2, keepdims=True)
        if sinks is not None:
            largest = np.maximum(largest, sinks)
            sinks = sinks - largest
        scores -= largest
    weights = np.exp(scores, out=scores)
    totals = _sum_chunks(weights.sum(axis=5, keepdims=True))
    if sinks is not None:
        totals += np.exp(sinks[:, :, 0])
    mixed = _sum_chunks(np.matmul(weights, values[:, :, :, None]))
    mixed /= totals  # [kv_heads, items, tiles, tile, value_dim]
    flat = mixed.reshape(kv_heads, item_count, -1, value_dim)[:, :, :rows]
    by_token = flat.reshape(kv_heads, item_count, -1, group, value_dim).transpose(1, 2, 0, 3, 4)
    out[items.rows] = by_token.reshape(*items.rows.shape, kv_heads * group, value_dim)


@lru_cache(maxsize=256)
def tile_rows(rows: int, key_dim: int, value_dim: int) -> int:
    """Rows to multiply at once: all where the host's BLAS, tested on these very shapes, gives a row
    the same bits in a call of any height; otherwise `TILE_ROWS`.
    """
    whole = rows + rows % 2
    generator = np.random.default_rng(rows)
    queries = generator.standard_normal((-(-whole // TILE_ROWS) * TILE_ROWS, key_dim))
    keys = generator.standard_normal((key_dim, CHUNK_TOKENS)).astype(np.float32)
    values = generator.standard_normal((CHUNK_TOKENS, value_dim)).astype(np.float32)
    tall = queries.astype(np.float32)[:whole]
    tiles = queries.astype(np.float32).reshape(-1, TILE_ROWS, key_dim)
    scores = tall @ keys
    tiled_scores = np.matmul(tiles, keys)
    same_scores = np.array_equal(scores, tiled_scores.reshape(-1, CHUNK_TOKENS)[:whole])
    mixed = np.matmul(tiled_scores, values).reshape(-1, value_dim)[:whole]
    return whole if same_scores and np.array_equal(scores @ values, mixed) else TILE_ROWS


def _sum_chunks(partial: Float32s) -> Float32s:
    """Add axis 2 of [kv_heads, items, chunks, ...] first to last, for any memory layout."""
    total = partial[:, :, 0].copy()
    for chunk in range(1, partial.shape[2]):
        total += partial[:, :, chunk]
    return total


def _gather_rows(
    queries: Float32s, items: AttentionItems, kv_heads: int, tile: int, scale: float
) -> Float32s:
    """Scale queries and lay them out as [kv_heads, items, 1, tiles, tile, key_dim]."""
    item_count, item_tokens = items.rows.shape
    _, heads, key_dim = queries.shape
    rows = item_tokens * (heads // kv_heads)
    tiles = -(-rows // tile)
    picked = queries[items.rows].reshape(item_count, item_tokens, kv_heads, -1, key_dim)
    laid = np.zeros((kv_heads, item_count, tiles * tile, key_dim), dtype=np.float32)
    by_head = picked.transpose(2, 0, 1, 3, 4).reshape(kv_heads, item_count, rows, key_dim)
    np.multiply(by_head, np.float32(scale), out=laid[:, :, :rows])
    return laid.reshape(kv_heads, item_count, 1, tiles, tile, key_dim)


def _lay_sinks(sinks: Float32s | None, shape: tuple[int, ...], group: int) -> Float32s | None:
    """Each row's sink, [kv_heads, 1, 1, tiles, tile, 1], in the layout of `_gather_rows`."""
    if sinks is None:
        return None
    kv_heads, _, _, tiles, tile = shape
    rows = np.resize(np.arange(group), tiles * tile)  # a row's head is its index modulo the group
    return sinks.reshape(kv_heads, group)[:, rows].reshape(kv_heads, 1, 1, tiles, tile, 1)


def scores_are_bounded(
    query_norm: Float32s, key_norm: Float32s, *, rotation_gain: float = 1.0
) -> bool:
    """Whether normalised queries and keys keep every score below `SAFE_SCORE`.

    A normalised vector times its weight [head_dim] is at most sqrt(head_dim) * max|weight| long, so
    a scaled score is at most sqrt(head_dim) * max|query_norm| * max|key_norm| * rotation_gain^2.
    """
    longest = np.abs(query_norm).max() * np.abs(key_norm).max() * rotation_gain**2
    return bool(np.sqrt(len(query_norm)) * longest <= SAFE_SCORE)
