"""One rank's tokens in one step, laid out for the kernels of every layer.

A batch has spans, the new tokens of a request each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from emulator.arrays import Int32s, Int64s
from emulator.compute.attention_kernel import Spans
from emulator.compute.layer_kernel import lay_out


class Span(NamedTuple):
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
    blocks: list[int] = []
    for span in spans:
        used = -(-(span.first_position + len(span.token_ids)) // block_tokens)
        assert used <= len(span.block_table), "a token has no block"
        blocks += span.block_table[:used]
    laid = lay_out(lengths, firsts, np.array(blocks, dtype=np.int64), block_tokens)
    return TokenBatch(
        token_ids=np.concatenate([span.token_ids for span in spans]).astype(np.int64),
        slots=laid[0],
        spans=Spans(*laid[1:]),
    )
