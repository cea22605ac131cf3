"""The blocks of prompts that one replica's KV caches hold, by the KV events of its ranks. Pure.

Events name a block by a hash of the engine's, and bring its tokens; here a block is a hash of its
tokens and all before it, as of the prompts that are compared. A block counts from the event that it
is stored to the one that it is removed. What a replica is computing counts too, as it will be there
before another prompt is.

Contract of events: `vllm.distributed.kv_events`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCKS_MAX: Final = 2**19
"""Blocks that are known of one replica: 8 million tokens of 16 each, some 150 MB. Assumed: KV
caches of a partition hold fewer. Beyond it the one stored longest ago is forgotten."""


_ALL_RANKS: Final = -1
"""As bits."""


class BlockStored(msgspec.Struct, tag=True):
    """Blocks that follow `parent_block_hash`, with the tokens of all; None: a prompt's first."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_name: str | None = None
    extra_keys: list[list[object] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """Blocks that are gone."""

    block_hashes: list[int | bytes]
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """All blocks of the rank are gone."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvEventBatch(msgspec.Struct, array_like=True):
    """What one step of one rank changed."""

    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


def token_hashes(tokens: NDArray[np.int32], block_tokens: int, before: int = 0) -> tuple[int, ...]:
    """A hash of each full block of `tokens`, [tokens], and all before it; `before` is the one
    before them.
    """
    data, size = tokens.tobytes(), block_tokens * tokens.itemsize
    blocks = (data[begin : begin + size] for begin in range(0, len(data) - size + 1, size))
    return tuple(accumulate(blocks, _after, initial=before))[1:]


def _after(before: int, block: bytes) -> int:
    return hash((before, block))


class HeldBlocks:
    """The blocks of one replica, of `block_tokens` each; larger or smaller ones are left out."""

    is_guess: ClassVar[bool] = False

    def __init__(self, block_tokens: int, blocks_max: int = BLOCKS_MAX) -> None:
        self._block_tokens = block_tokens
        self._blocks_max = blocks_max
        self._of_ranks: dict[int, dict[int | bytes, int]] = {}
        self._stored: dict[int, int] = {}  # a bit for each rank that holds the block
        self._computing: Counter[int] = Counter()  # over requests
        self.blocks = 0

    # ---- of prompts

    def hit_tokens(self, hashes: Sequence[int]) -> int:
        """Tokens of the prompt's beginning that one rank holds, or is computing."""
        hits, ranks = 0, _ALL_RANKS
        for each in hashes:
            if each not in self._computing:  # else in a rank that is not known
                ranks &= self._stored.get(each, 0)
            if not ranks:
                break
            hits += 1
        return hits * self._block_tokens

    def begin(self, hashes: Sequence[int]) -> None:
        """A prompt is sent."""
        self._computing.update(hashes)

    def end(self, hashes: Sequence[int]) -> None:
        """Its request has ended; what is left of it, events say."""
        for each in hashes:
            self._computing[each] -= 1
            if not self._computing[each]:
                del self._computing[each]

    # ---- of events

    def take(self, batch: KvEventBatch) -> None:
        """Note what a step changed."""
        number = batch.data_parallel_rank or 0
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(number, event)
            elif isinstance(event, AllBlocksCleared):
                self._remove(number, list(self._of_ranks.get(number, ())))
            elif not event.group_idx:  # others hold the same tokens' other layers
                self._remove(number, event.block_hashes)

    def clear(self) -> None:
        """Forget what was stored: the replica has started anew, or events were lost."""
        self._of_ranks.clear()
        self._stored.clear()
        self.blocks = 0

    def _store(self, number: int, event: BlockStored) -> None:
        """Leaves out what no plain prompt meets: adapters, images, salts; and what follows a block
        that is not known.
        """
        rank = self._of_ranks.setdefault(number, {})
        special = event.lora_name is not None or any(event.extra_keys or ())
        before = 0 if event.parent_block_hash is None else rank.get(event.parent_block_hash)
        if special or before is None or event.group_idx or event.block_size != self._block_tokens:
            return
        tokens = np.asarray(event.token_ids, dtype=np.int32)  # [blocks * block_size]
        own = token_hashes(tokens, event.block_size, before)
        for name, each in zip(event.block_hashes, own, strict=True):
            if name not in rank:
                rank[name] = each
                self._stored[each] = self._stored.get(each, 0) | 1 << number
                self.blocks += 1
        while self.blocks > self._blocks_max:
            fullest = max(self._of_ranks, key=lambda each: len(self._of_ranks[each]))
            self._remove(fullest, [next(iter(self._of_ranks[fullest]))])

    def _remove(self, number: int, names: Iterable[int | bytes]) -> None:
        rank = self._of_ranks.get(number, {})
        for name in names:
            own = rank.pop(name, None)
            if own is None:
                continue
            self.blocks -= 1
            self._stored[own] &= ~(1 << number)
            if not self._stored[own]:
                del self._stored[own]
