import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.data import SMALL_MOE_DIR
from loadgen.errors import LoadError
from loadgen.prompts.single_token_words import (
    WORDS_MAX,
    WORDS_MIN,
    every_pair,
    find_single_token_words,
)
from loadgen.tokenizers.local_tokenizer import LocalTokenizer
from loadgen.tokenizers.word_tokenizer import WordTokenizer
from tests.loadgen.prompts.trained_tokenizers import local, trained


class JoinsOfThe(WordTokenizer):
    """A tokenizer for which `of the` is one token."""

    async def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        return await super().encode([text.replace("of the", "of_the") for text in texts])


def test_every_ordered_pair_stands_together_once() -> None:
    run = every_pair("abc")

    assert run == list("aabacbbcca")
    assert sorted(pairwise(run)) == sorted(product("abc", repeat=2))


@given(count=st.integers(1, 40))
def test_every_pair_of_any_number_of_words_stands_together_once(count: int) -> None:
    words = [str(number) for number in range(count)]
    run = every_pair(words)

    assert sorted(pairwise(run)) == sorted(product(words, repeat=2))


@pytest.mark.long
@pytest.mark.parametrize(
    "family", ["byte-level BPE", "SentencePiece BPE", "WordPiece", "Unigram", "bytes"]
)
def test_any_order_of_the_words_has_one_token_for_each(family: str, tmp_path: Path) -> None:
    found = asyncio.run(find_single_token_words(local(family, tmp_path)))
    chance = random.Random(3)

    for count in (1, 2, 3, 10, 3_000):
        text = found.joiner.join(chance.choices(found.words, k=count))
        assert len(trained(family).encode(text, add_special_tokens=False).ids) == count
    assert WORDS_MIN <= len(found.words) <= WORDS_MAX


def test_the_bundled_model_has_words_enough() -> None:
    found = asyncio.run(find_single_token_words(LocalTokenizer(SMALL_MOE_DIR)))

    assert found.joiner == " "
    assert {"a", "and", "not"} <= set(found.words)


def test_words_that_become_one_token_side_by_side_are_not_both_kept() -> None:
    found = asyncio.run(find_single_token_words(JoinsOfThe()))

    assert not {"of", "the"} <= set(found.words)
    assert {"of", "the"} & set(found.words)


@pytest.mark.long
def test_a_tokenizer_that_joins_all_words_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        LoadError, match=r"no text of an exact length .* --prompts token-ids"
    ) as got:
        asyncio.run(find_single_token_words(local("BPE across words", tmp_path)))

    assert "\n" not in str(got.value)
