"""One rank's tokens in one step, laid out for the kernels of every layer.

A batch has spans, the new tokens of a request each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.compute.attention_kernel import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """New tokens of one request, from `first_position`, and its block table."""

    token_ids: Int32s  # [new_tokens]
    first_position: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The flattened step: `token_ids` and KV `slots` are [tokens]."""

    token_ids: Int64s
    slots: Int64s
    spans: Spans


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
        slots=blocks * block_tokens + positions % block_tokens,
        spans=Spans(starts=starts, positions=positions, tables=tables),
    )


def _pad_tables(spans: Sequence[Span], ends: Int64s, block_tokens: int) -> Int64s:
    """Block tables as one array, padded with null blocks."""
    used = -(-ends // block_tokens)
    tables = np.zeros((len(spans), used.max()), dtype=np.int64)
    for row, span, count in zip(tables, spans, used.tolist(), strict=True):
        row[:count] = span.block_table[:count]
    return tables
