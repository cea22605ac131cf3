import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from emulator.data import SMALL_MOE_DIR
from loadgen.errors import LoadError
from loadgen.prompts.contents import token_run, word_run
from loadgen.prompts.prompt_text import paragraphs
from loadgen.prompts.single_token_words import SingleTokenWords
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer

LETTERS = SingleTokenWords(words=tuple("abcd"), joiner="")


class Mute(WordTokenizer):
    """A tokenizer that makes nothing of anything."""

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return [() for _ in texts]


@pytest.mark.parametrize("tokens", [1, 100, 60_000])
def test_a_run_is_the_beginning_of_the_seed_s_text_in_tokens(tokens: int) -> None:
    tokenizer = LocalTokenizer(SMALL_MOE_DIR)
    run = asyncio.run(token_run(tokenizer, seed=3, tokens=tokens))
    text = asyncio.run(tokenizer.decode([run]))[0]

    assert len(run) == tokens
    writer = paragraphs(3)
    written = ""
    while len(written) < len(text):
        written += next(writer)
    assert written.startswith(text)


def test_a_tokenizer_that_makes_no_tokens_is_refused() -> None:
    with pytest.raises(LoadError, match="returned no tokens for a text"):
        asyncio.run(token_run(Mute(), seed=0, tokens=1))


def test_words_are_drawn_evenly_and_by_their_seed() -> None:
    def drawn(seed: int) -> tuple[str, ...]:
        return word_run(LETTERS, chance=np.random.default_rng(seed), tokens=4_000)

    shares = [drawn(0).count(letter) / 4_000 for letter in "abcd"]

    assert shares == pytest.approx([0.25] * 4, abs=0.04)  # five standard deviations are 0.034
    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
