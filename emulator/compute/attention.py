"""Grouped-query attention over a paged context, in pieces of fixed shape.

The unit of work is an *item*: some query rows of one request against one block table. A decode
step is one item per request, a prefill is one item per `query block` of its new tokens. Rows are
padded to tiles and contexts to whole chunks, and chunk sums are added first to last, so a token's
result has the same bits whether it was computed alone, in a batch, in one prefill or in several.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.compute.paged_kv import CHUNK_TOKENS, PagedKv
from emulator.compute.tiled_matmul import F32, TILE_ROWS

QUERY_BLOCK_TOKENS = 64
"""New tokens of a prefill that are attended together; bounds the memory of the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionItems:
    """Items of equal size, attended in one call.

    Attributes:
        rows: [items, item_tokens] index of each query token in the batch; -1 pads.
        positions: [items, item_tokens] position of each query token; 0 where padded.
        tables: [items, chunks * blocks_per_chunk] block tables, padded with block 0.
    """

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    tables: NDArray[np.int64]


def attend(queries: F32, kv: PagedKv, layer: int, items: AttentionItems, out: F32) -> None:
    """Attend `items` of `queries` [tokens, heads, head_dim]; writes `out` of the same shape.

    Each query sees the keys at its own position and before it.
    """
    keys, values = kv.read(layer, items.tables)  # [kv_heads, items, chunks, CHUNK, head_dim]
    kv_heads, _, chunks, _, head_dim = keys.shape
    group = queries.shape[1] // kv_heads
    grouped = _gather_rows(queries, items, kv_heads)  # [kv_heads, items, 1, tiles, TILE, head_dim]
    scale = np.float32(head_dim**-0.5)
    scores = np.matmul(grouped * scale, keys.swapaxes(-1, -2)[:, :, :, None])
    # -> [kv_heads, items, chunks, tiles, TILE_ROWS, CHUNK]
    row_positions = _tile(np.repeat(items.positions, group, axis=1))  # [items, tiles, TILE_ROWS]
    key_positions = np.arange(chunks * CHUNK_TOKENS).reshape(chunks, 1, 1, CHUNK_TOKENS)
    hidden = key_positions[None] > row_positions[:, None, :, :, None]
    np.copyto(scores, np.float32(-np.inf), where=hidden[None])
    largest = scores.max(axis=(2, 5), keepdims=True)
    weights = np.exp(scores - largest, out=scores)
    totals = _sum_chunks(weights.sum(axis=5, keepdims=True))
    mixed = _sum_chunks(np.matmul(weights, values[:, :, :, None]))
    _scatter_rows(mixed / totals, items, out, group)


def _sum_chunks(partial: F32) -> F32:
    """Add axis 2 of [kv_heads, items, chunks, ...] first to last, whatever the layout."""
    total = partial[:, :, 0].copy()
    for chunk in range(1, partial.shape[2]):
        total += partial[:, :, chunk]
    return total


def _tile(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pad [items, rows] to whole tiles: [items, tiles, TILE_ROWS]."""
    items, count = rows.shape
    tiles = -(-count // TILE_ROWS)
    padded = np.zeros((items, tiles * TILE_ROWS), dtype=np.int64)
    padded[:, :count] = rows
    return padded.reshape(items, tiles, TILE_ROWS)


def _gather_rows(queries: F32, items: AttentionItems, kv_heads: int) -> F32:
    """Lay out queries as [kv_heads, items, 1, tiles, TILE_ROWS, head_dim]."""
    item_count, item_tokens = items.rows.shape
    head_dim = queries.shape[2]
    group = queries.shape[1] // kv_heads
    picked = queries[items.rows].reshape(item_count, item_tokens, kv_heads, group, head_dim)
    rows = item_tokens * group
    tiles = -(-rows // TILE_ROWS)
    laid = np.zeros((kv_heads, item_count, tiles * TILE_ROWS, head_dim), dtype=np.float32)
    laid[:, :, :rows] = picked.transpose(2, 0, 1, 3, 4).reshape(kv_heads, item_count, rows, -1)
    return laid.reshape(kv_heads, item_count, 1, tiles, TILE_ROWS, head_dim)


def _scatter_rows(mixed: F32, items: AttentionItems, out: F32, group: int) -> None:
    """Write [kv_heads, items, tiles, TILE_ROWS, head_dim] back to `out` [tokens, heads, dim]."""
    kv_heads, item_count = mixed.shape[:2]
    head_dim = mixed.shape[-1]
    item_tokens = items.rows.shape[1]
    flat = mixed.reshape(kv_heads, item_count, -1, head_dim)[:, :, : item_tokens * group]
    by_token = flat.reshape(kv_heads, item_count, item_tokens, group, head_dim)
    by_token = by_token.transpose(1, 2, 0, 3, 4)  # [items, item_tokens, kv_heads, group, head_dim]
    real = items.rows >= 0
    out[items.rows[real]] = by_token[real].reshape(-1, kv_heads * group, head_dim)
