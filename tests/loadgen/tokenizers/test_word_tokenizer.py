import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LoadError
from loadgen.tokenizers.word_tokenizer import WordTokenizer

WORDS = st.text("abc", min_size=1, max_size=3)


def test_a_word_is_a_token() -> None:
    tokenizer = WordTokenizer()

    assert asyncio.run(tokenizer.encode(["the cat saw\nthe dog", ""])) == [(0, 1, 2, 0, 3), ()]
    assert asyncio.run(tokenizer.prompt_tokens("the cat")) == 2
    assert asyncio.run(tokenizer.chat_tokens([("user", "the cat"), ("assistant", "no")])) == 3


@given(texts=st.lists(st.lists(WORDS).map(" ".join)))
def test_words_come_back_from_their_numbers(texts: list[str]) -> None:
    tokenizer = WordTokenizer()

    assert asyncio.run(tokenizer.decode(asyncio.run(tokenizer.encode(texts)))) == texts


def test_a_number_without_a_word_is_refused() -> None:
    with pytest.raises(LoadError, match="stands for no word"):
        asyncio.run(WordTokenizer().decode([(0,)]))
