"""From recorded rows to requests: lengths kept or cut, prompts of exactly those lengths.

The same rows, pool and seed give the same requests. This module must not know when requests are
sent (`loadgen.pacer`) or to whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadgen.prompt_pool import Int64s, PromptPool
from loadgen.request import Request
from loadgen.trace import TraceRow

WARMUP_INPUT_TOKENS: Final = 16
WARMUP_OUTPUT_TOKENS: Final = 2  # the second one takes a decode step


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCuts:
    """The caps that were put on recorded lengths (None: no cap), and what they took away."""

    max_input_tokens: int | None
    max_output_tokens: int | None
    input_cut_requests: int
    input_tokens_cut: int
    output_cut_requests: int
    output_tokens_cut: int


def cut_lengths(
    rows: Sequence[TraceRow], *, max_input_tokens: int | None, max_output_tokens: int | None
) -> tuple[tuple[TraceRow, ...], LengthCuts]:
    """Cap the rows' lengths, and count how many rows and tokens that changed."""
    cut_rows = tuple(
        replace(
            row,
            input_tokens=_capped(row.input_tokens, max_input_tokens),
            output_tokens=_capped(row.output_tokens, max_output_tokens),
        )
        for row in rows
    )
    inputs = [row.input_tokens - cut.input_tokens for row, cut in zip(rows, cut_rows, strict=True)]
    outputs = [
        row.output_tokens - cut.output_tokens for row, cut in zip(rows, cut_rows, strict=True)
    ]
    return cut_rows, LengthCuts(
        max_input_tokens=max_input_tokens,
        max_output_tokens=max_output_tokens,
        input_cut_requests=sum(tokens > 0 for tokens in inputs),
        input_tokens_cut=sum(inputs),
        output_cut_requests=sum(tokens > 0 for tokens in outputs),
        output_tokens_cut=sum(outputs),
    )


def _capped(tokens: int, cap: int | None) -> int:
    return tokens if cap is None else min(tokens, cap)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Rows and where in the pool each one's prompt begins; requests are made when asked for.

    `warmup_offsets` are places that no row's prompt begins at. `repeated_heads` counts requests
    whose prompt begins like another's, because the pool had too few different beginnings.
    """

    rows: tuple[TraceRow, ...]
    pool: PromptPool
    offsets: Int64s  # [rows]
    warmup_offsets: Int64s  # [warm-ups]
    repeated_heads: int

    def __len__(self) -> int:
        return len(self.rows)

    def request(self, index: int) -> Request:
        """Make the request of row `index`."""
        row = self.rows[index]
        return Request(
            request_id=index,
            prompt=self.pool.window(int(self.offsets[index]), row.input_tokens),
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
        )

    def warmup_request(self, index: int) -> Request:
        """Make a short request that is none of the workload's own."""
        offset = int(self.warmup_offsets[index])
        return Request(
            request_id=index,
            prompt=self.pool.window(offset, WARMUP_INPUT_TOKENS),
            input_tokens=WARMUP_INPUT_TOKENS,
            output_tokens=WARMUP_OUTPUT_TOKENS,
        )


def make_workload(
    rows: tuple[TraceRow, ...], pool: PromptPool, *, warmups: int, seed: int
) -> Workload:
    """Give every row, and every warm-up, a window of its own."""
    distinct = pool.distinct_offsets(np.random.default_rng(seed))
    wanted = len(rows) + warmups
    offsets = np.resize(distinct, wanted)  # begins anew when there are too few
    return Workload(
        rows=rows,
        pool=pool,
        offsets=offsets[: len(rows)],
        warmup_offsets=offsets[len(rows) :],
        repeated_heads=max(0, len(rows) - distinct.size),
    )
