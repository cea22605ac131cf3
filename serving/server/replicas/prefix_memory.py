"""The beginnings of prompts that a replica was sent lately, as a guess of its prefix cache.

Prompts are compared as the bytes of their JSON, which are known before any tokenizer has read them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar, Final

from serving.policy.admission.work import CHARACTERS_PER_TOKEN
from serving.server.gateway.http.request_work import AskedBody

BLOCK_BYTES: Final = 256
"""Of a block; 64 tokens of text. Assumed: shorter ones find no more, as templates are longer."""

BLOCKS_MAX: Final = 2**15
"""Blocks that are remembered of a replica, two million tokens. Assumed."""

BLOCK_TOKENS: Final = BLOCK_BYTES // CHARACTERS_PER_TOKEN

_FIELDS: Final = (
    *("tools", "system", "instructions"),
    *("messages", "input", "prompt", "token_ids"),
)
"""What comes first in a prompt, first."""


def block_hashes(asked: AskedBody | None) -> tuple[int, ...]:
    """A hash of each full block of the prompt, and all before it."""
    if asked is None:
        return ()
    text = b"".join(bytes(getattr(asked, name)) for name in _FIELDS)
    hashes, last = [], 0
    for begin in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        last = hash((last, text[begin : begin + BLOCK_BYTES]))
        hashes.append(last)
    return tuple(hashes)


class PrefixMemory:
    """The blocks of one replica; the longest unused goes first, a prompt's end before its
    beginning.
    """

    is_guess: ClassVar[bool] = True

    def __init__(self, blocks_max: int = BLOCKS_MAX) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._blocks_max = blocks_max

    def hit_tokens(self, hashes: Sequence[int]) -> int:
        """Tokens of the prompt's beginning that it was sent."""
        hits = 0
        for each in hashes:
            if each not in self._blocks:
                break
            hits += 1
        return hits * BLOCK_TOKENS

    def begin(self, hashes: Sequence[int]) -> None:
        """Remember a prompt that is sent."""
        for each in reversed(hashes):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def end(self, hashes: Sequence[int]) -> None:
        """Its request has ended: what it was stays."""

    def clear(self) -> None:
        """Forget all: the replica has started anew."""
        self._blocks.clear()
