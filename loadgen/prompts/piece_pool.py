"""One long run of tokens, from which every piece of a prompt is cut.

Tokenising text for a piece of exact length would cost a call per request; windows of a tokenised
run have it by construction. A piece is a short head from one place and the rest from another, both
given by its key: some thousand tokens begin millions of pieces that no prefix cache confuses.
"""

from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

import numpy as np

Item = TypeVar("Item", int, str)

# A head and as much of the rest are one block of a paged KV cache of vLLM's default size (16):
# prefix caches share whole blocks, so pieces of that length or more share none.
HEAD_TOKENS: Final = 8
STARTS_MAX: Final = 1 << 14  # looked at: their square is enough keys, and sorting them is quick


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PiecePool(Generic[Item]):
    """The run: `items` are token ids, or texts of one token each; it wraps around. `starts` are
    places whose windows of HEAD_TOKENS items all differ.

    Raises ValueError for an empty run or no start.
    """

    items: tuple[Item, ...]
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.items or not self.starts:
            raise ValueError("a pool has items, and a place to start")

    @classmethod
    def of(cls, items: tuple[Item, ...], *, chance: np.random.Generator) -> Self:
        """Find starts, in random order; of equal windows one is kept."""
        if not items:
            raise ValueError("a pool has items, and a place to start")
        numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
        run = np.array([numbers[item] for item in items], dtype=np.int64)  # [items]
        places = min(run.size, STARTS_MAX)
        wrapped = np.resize(run, places + HEAD_TOKENS - 1)  # it repeats what it has too little of
        heads = np.lib.stride_tricks.sliding_window_view(wrapped, HEAD_TOKENS)  # [places, head]
        _, first = np.unique(heads, axis=0, return_index=True)
        return cls(items=items, starts=tuple(chance.permutation(first).tolist()))

    @property
    def keys(self) -> int:
        """Number of keys with distinct beginnings; later keys repeat these."""
        return len(self.starts) ** 2

    def piece(self, key: int, tokens: int) -> tuple[Item, ...]:
        """The piece of `key`; a shorter one begins a longer one."""
        places = len(self.starts)
        head = self.starts[key % places]
        if tokens <= HEAD_TOKENS:
            return self._window(head, tokens)
        # Two digits of the key: which head, and how far on in `starts` the rest is. Never the same.
        rest = self.starts[(key // places + key + 1) % places]
        return self._window(head, HEAD_TOKENS) + self._window(rest, tokens - HEAD_TOKENS)

    def _window(self, offset: int, length: int) -> tuple[Item, ...]:
        cut = self.items[offset : offset + length]
        if len(cut) < length:
            again, last = divmod(length - len(cut), len(self.items))
            cut += self.items * again + self.items[:last]
        return cut
