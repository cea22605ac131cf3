"""Runs of tokens for pools: ordinary text, split by the model's own tokenizer."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from loadgen.errors import LoadError
from loadgen.prompts.prompt_text import paragraphs
from loadgen.prompts.single_token_words import SingleTokenWords
from loadgen.records.tokenizer import Tokenizer

PIECE_CHARACTERS: Final = 1 << 16  # of text, split at once
CHARACTERS_PER_TOKEN: Final = 4.0  # of English; a wrong guess costs one more round


async def token_run(tokenizer: Tokenizer, *, seed: int, tokens: int) -> tuple[int, ...]:
    """Split enough of the seed's text for `tokens` token ids.

    Without special tokens: a window may be cut anywhere. Raises LoadError for a tokenizer that
    returns no tokens.
    """
    text = paragraphs(seed)
    run: list[int] = []
    while len(run) < tokens:
        missing = (tokens - len(run)) * CHARACTERS_PER_TOKEN
        pieces = [_piece(text) for _ in range(int(missing / PIECE_CHARACTERS) + 1)]
        split = await tokenizer.encode(pieces)
        if not any(split):
            raise LoadError(f"{tokenizer.words} returned no tokens for a text")
        for ids in split:
            run += ids
    return tuple(run[:tokens])


def word_run(
    words: SingleTokenWords, *, chance: np.random.Generator, tokens: int
) -> tuple[str, ...]:
    """Draw `tokens` of the words, in any order."""
    drawn = chance.integers(len(words.words), size=tokens)  # [tokens]
    return tuple(words.words[number] for number in drawn.tolist())


def _piece(text: Iterator[str]) -> str:
    parts: list[str] = []
    characters = 0
    while characters < PIECE_CHARACTERS:
        part = next(text)
        parts.append(part)
        characters += len(part)
    return "".join(parts)
