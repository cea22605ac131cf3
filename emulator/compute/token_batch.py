"""One rank's tokens in one step, laid out for the kernels of every layer.

Decodes of similar context are attended together; each prefill is cut into query blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.compute.attention import QUERY_BLOCK_TOKENS, AttentionItems
from emulator.compute.paged_kv import CHUNK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """New tokens of one request, from `first_position`, and its block table."""

    token_ids: Int32s  # [new_tokens]
    first_position: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The flattened step: `token_ids`, `positions` and KV `slots` are [tokens]."""

    token_ids: Int64s
    positions: Int64s
    slots: Int64s
    starts: Int64s  # [spans] row of each span's first token
    items: tuple[AttentionItems, ...]


def make_token_batch(spans: Sequence[Span], block_tokens: int) -> TokenBatch:
    """Lay out `spans`, in order, for a KV cache of `block_tokens` per block."""
    lengths = np.array([len(span.token_ids) for span in spans], dtype=np.int64)  # [spans]
    firsts = np.array([span.first_position for span in spans], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    tables = _pad_tables(spans, firsts + lengths, block_tokens)  # [spans, table_blocks]
    span_of_row = np.repeat(np.arange(len(spans)), lengths)
    positions = np.arange(int(lengths.sum())) - (starts - firsts)[span_of_row]
    blocks = tables[span_of_row, positions // block_tokens]
    return TokenBatch(
        token_ids=np.concatenate([span.token_ids for span in spans]).astype(np.int64),
        positions=positions,
        slots=blocks * block_tokens + positions % block_tokens,
        starts=starts,
        items=tuple(_decode_items(lengths, starts, positions, tables, block_tokens))
        + tuple(_prefill_items(lengths, starts, positions, tables, block_tokens)),
    )


def _pad_tables(spans: Sequence[Span], ends: Int64s, block_tokens: int) -> Int64s:
    """Block tables as one array, padded with null blocks to whole chunks."""
    chunks = int(-(-ends.max() // CHUNK_TOKENS))
    width = chunks * (CHUNK_TOKENS // block_tokens)
    tables = np.zeros((len(spans), width), dtype=np.int64)
    for index, (span, end) in enumerate(zip(spans, ends.tolist(), strict=True)):
        used = -(-end // block_tokens)
        tables[index, :used] = span.block_table[:used]
    return tables


def _chunk_blocks(last_positions: Int64s, block_tokens: int) -> int:
    chunks = int(last_positions.max()) // CHUNK_TOKENS + 1
    return chunks * (CHUNK_TOKENS // block_tokens)


def _decode_items(
    lengths: Int64s, starts: Int64s, positions: Int64s, tables: Int64s, block_tokens: int
) -> list[AttentionItems]:
    """One item per single-token span, grouped by the power of two of its chunks."""
    single = np.flatnonzero(lengths == 1)
    if not len(single):
        return []
    chunks = positions[starts[single]] // CHUNK_TOKENS + 1
    classes = np.ceil(np.log2(chunks)).astype(np.int64)
    groups = []
    for size_class in np.unique(classes):
        members = single[classes == size_class]
        rows = starts[members][:, None]
        width = _chunk_blocks(positions[rows], block_tokens)
        groups.append(
            AttentionItems(rows=rows, positions=positions[rows], tables=tables[members, :width])
        )
    return groups


def _prefill_items(
    lengths: Int64s, starts: Int64s, positions: Int64s, tables: Int64s, block_tokens: int
) -> list[AttentionItems]:
    items = []
    for span in np.flatnonzero(lengths > 1).tolist():
        end = int(starts[span] + lengths[span])
        for first in range(int(starts[span]), end, QUERY_BLOCK_TOKENS):
            rows = np.arange(first, min(first + QUERY_BLOCK_TOKENS, end))[None]
            width = _chunk_blocks(positions[rows], block_tokens)
            items.append(
                AttentionItems(
                    rows=rows, positions=positions[rows], tables=tables[span : span + 1, :width]
                )
            )
    return items
