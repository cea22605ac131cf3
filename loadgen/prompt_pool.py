"""One long run of tokens, out of which every prompt is cut as a window.

Making a prompt of an exact length by tokenising text anew for each request would cost a call per
request and still miss the length; a window of token ids has it by construction. Windows begin at
different places, so that a server's prefix cache finds nothing that the workload does not mean.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from loadgen.request import Prompt

Int64s = NDArray[np.int64]

# Windows differ within their first tokens, one block of a paged KV cache of vLLM's default size:
# prefix caches share whole blocks, so no two prompts of that length or more share any.
HEAD_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptPool:
    """The run of tokens, int64[tokens]; `words` is empty, or the word that each number stands for.

    Raises ValueError for an empty run.
    """

    tokens: Int64s
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or not self.tokens.size:
            raise ValueError("a pool has tokens")

    @classmethod
    def of_words(cls, text: str) -> Self:
        """Make a pool whose tokens are the words of `text`, for servers without a tokenizer."""
        words = text.split()
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        return cls(
            tokens=np.array([numbers[word] for word in words], dtype=np.int64),
            words=tuple(numbers),
        )

    def window(self, offset: int, length: int) -> Prompt:
        """Cut the prompt of `length` tokens that begins at `offset`; past the end it begins anew.

        Token ids, or the words joined by spaces if the pool has words.
        """
        cut = self.tokens[offset : offset + length]
        if cut.size < length:
            places = np.arange(offset, offset + length)
            cut = self.tokens.take(places, mode="wrap")
        if self.words:
            return " ".join(self.words[number] for number in cut)
        return tuple(cut.tolist())

    def distinct_offsets(self, chance: np.random.Generator) -> Int64s:
        """Every offset whose window has a head that no other has, in random order, int64[offsets].

        Of windows with the same head, one is kept.
        """
        wrapped = np.concatenate([self.tokens, np.resize(self.tokens, HEAD_TOKENS - 1)])
        heads = np.lib.stride_tricks.sliding_window_view(wrapped, HEAD_TOKENS)  # [tokens, head]
        _, first = np.unique(heads, axis=0, return_index=True)
        shuffled: Int64s = chance.permutation(first.astype(np.int64))
        return shuffled
