"""Material of prompts' pieces: token ids, or words of one token each.

A piece without recorded text is cut from a pool.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from loadgen.prompts.piece_pool import PiecePool
from loadgen.records.request import Prompt
from loadgen.workloads.session_plan import PromptSegment

TokenIds = tuple[int, ...]
Recorded = tuple[str, int]
"""A recorded text, and the number of its tokens wanted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wording(ABC):
    """Makes the contents of messages. Immutable and picklable."""

    recorded: Mapping[Recorded, Prompt] = field(default_factory=dict)

    @property
    @abstractmethod
    def keys(self) -> int:
        """Number of keys with distinct beginnings."""

    @abstractmethod
    def joined(self, pieces: Sequence[Prompt]) -> Prompt:
        """Join pieces into one content."""

    @abstractmethod
    def continued(self, content: Prompt) -> Prompt:
        """A content that continues another in the same prompt."""

    @abstractmethod
    def made(self, key: int, tokens: int) -> Prompt:
        """The piece of this key and length, cut from the pool."""

    def piece(self, segment: PromptSegment) -> Prompt:
        """Make the piece; KeyError for an unknown recorded text."""
        if segment.text is None:
            return self.made(segment.key, segment.tokens)
        return self.recorded[segment.text, segment.tokens]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdWording(Wording):
    """Contents of token ids."""

    pool: PiecePool[int]

    @property
    def keys(self) -> int:
        """Those of the pool."""
        return self.pool.keys

    def joined(self, pieces: Sequence[Prompt]) -> Prompt:
        """One after another."""
        if len(pieces) == 1:
            return pieces[0]
        ids: list[int] = []
        for piece in cast(Sequence[TokenIds], pieces):
            ids += piece
        return tuple(ids)

    def continued(self, content: Prompt) -> Prompt:
        """Unchanged: ids need no joiner."""
        return content

    def made(self, key: int, tokens: int) -> Prompt:
        """Cut it out of the pool."""
        return self.pool.piece(key, tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextWording(Wording):
    """Contents of text; `joiner` stands between words, and so between pieces.

    Unless the words are `told_apart`, they may all be one token.
    """

    pool: PiecePool[str]
    joiner: str
    told_apart: bool = True

    @property
    def keys(self) -> int:
        """Those of the pool, if its words are different tokens."""
        return self.pool.keys if self.told_apart else 1

    def joined(self, pieces: Sequence[Prompt]) -> Prompt:
        """With the joiner between them."""
        return self.joiner.join(cast(Sequence[str], pieces))

    def continued(self, content: Prompt) -> Prompt:
        """Begin with the joiner."""
        return self.joiner + cast(str, content)

    def made(self, key: int, tokens: int) -> Prompt:
        """Join words of the pool."""
        return self.joiner.join(self.pool.piece(key, tokens))
