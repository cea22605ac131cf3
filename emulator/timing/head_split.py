"""One chip's share of a rank's heads, repeated work included.

Heads are divided over all logical cores of a rank's chips. Uneven query heads are padded; key and
value heads fewer than the cores are repeated.
"""

from dataclasses import dataclass

from emulator.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSplit:
    """One chip's part of its rank's attention, relative to the whole of it.

    Attributes:
        query_share: query heads, their weights and scores.
        kv_share: key and value projections.
        column_share: columns of feed-forward networks, rows of the vocabulary.
    """

    query_share: float
    kv_share: float
    column_share: float


def head_split(model: ModelSpec, *, tp: int, cores: int) -> HeadSplit:
    """The share of one of `tp` chips with `cores` logical cores each."""
    parts = tp * cores
    return HeadSplit(
        query_share=cores * heads_per_part(model.heads, parts) / model.heads,
        kv_share=cores * heads_per_part(model.kv_heads, parts) / model.kv_heads,
        column_share=1 / tp,
    )


def heads_per_part(heads: int, parts: int) -> int:
    """Heads of each part, the last ones padded or repeated."""
    return -(-heads // parts)
