"""Recorded traffic as columns: arrivals, lengths, shared prefixes.

Must not know how rows become sessions (`loadgen.workloads.plan`).
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from loadgen.records.arrays import Int64s
from loadgen.workloads.trace_lines import TraceRow

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """A trace, a row per request.

    `arrivals_ns` int64[rows] counts from the first row and does not fall; `input_tokens` and
    `output_tokens` int64[rows]. `blocks`, if recorded, names each prompt's blocks of `block_tokens`
    tokens; prompts that begin with the same blocks begin with the same text. `kind` is the format;
    `notes` name what was left out.
    """

    kind: str
    arrivals_ns: Int64s
    input_tokens: Int64s
    output_tokens: Int64s
    blocks: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.arrivals_ns.size

    @classmethod
    def of_rows(cls, kind: str, rows: Iterable[TraceRow], *, block_tokens: int = 0) -> Self:
        """Put at least one row into columns; blocks are kept if they have a length."""
        # Number by number: rows of a trace of millions would be some GB if they were all kept.
        at_ns, input_tokens, output_tokens = array("q"), array("q"), array("q")
        blocks: list[tuple[int, ...]] = []
        for row in rows:
            at_ns.append(row.at_ns)
            input_tokens.append(row.input_tokens)
            output_tokens.append(row.output_tokens)
            if block_tokens:
                blocks.append(row.blocks)
        return cls(
            kind=kind,
            arrivals_ns=np.array(at_ns, dtype=np.int64) - at_ns[0],
            input_tokens=np.array(input_tokens, dtype=np.int64),
            output_tokens=np.array(output_tokens, dtype=np.int64),
            blocks=tuple(blocks) if block_tokens else None,
            block_tokens=block_tokens,
        )

    def window(self, from_s: float, to_s: float) -> Self | None:
        """Keep the rows that arrived from `from_s` to before `to_s`; None without any.

        Arrivals then count from the first kept row.
        """
        first, end = np.searchsorted(
            self.arrivals_ns, np.array([from_s, to_s]) * NS_PER_S, side="left"
        ).tolist()
        if first >= end:
            return None
        arrivals_ns = self.arrivals_ns[first:end]
        return replace(
            self,
            arrivals_ns=arrivals_ns - arrivals_ns[0],
            input_tokens=self.input_tokens[first:end],
            output_tokens=self.output_tokens[first:end],
            blocks=None if self.blocks is None else self.blocks[first:end],
        )
