import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.prompt_pool import HEAD_TOKENS, PromptPool


def pool(*tokens: int) -> PromptPool:
    return PromptPool(tokens=np.array(tokens, dtype=np.int64))


def test_a_window_is_the_tokens_from_its_offset_on() -> None:
    assert pool(10, 11, 12, 13).window(1, 2) == (11, 12)


def test_a_window_past_the_end_begins_anew() -> None:
    assert pool(10, 11, 12).window(2, 8) == (12, 10, 11, 12, 10, 11, 12, 10)


def test_a_pool_of_words_gives_text_of_that_many_words() -> None:
    words = PromptPool.of_words("the cat saw\nthe dog")

    assert words.tokens.tolist() == [0, 1, 2, 0, 3]
    assert words.window(3, 3) == "the dog the"


def test_windows_of_one_beginning_are_offered_once() -> None:
    # Two halves of 20: each beginning is there twice, except those that run into the seam.
    half = list(range(20))
    offsets = pool(*half, *half).distinct_offsets(np.random.default_rng(0))

    assert sorted(offsets.tolist()) == half


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool has tokens"):
        pool()


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    offset=st.integers(0, 59),
    length=st.integers(1, 200),
)
def test_a_window_has_exactly_its_length(tokens: list[int], offset: int, length: int) -> None:
    window = pool(*tokens).window(offset % len(tokens), length)

    assert len(window) == length
    assert window == tuple((tokens * 300)[offset % len(tokens) :][:length])


@given(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=80), seed=st.integers(0, 9))
def test_distinct_offsets_are_all_beginnings_and_no_beginning_twice(
    tokens: list[int], seed: int
) -> None:
    made = pool(*tokens)
    heads = [made.window(offset, HEAD_TOKENS) for offset in range(len(tokens))]

    chosen = [heads[offset] for offset in made.distinct_offsets(np.random.default_rng(seed))]

    assert len(chosen) == len(set(chosen))
    assert set(chosen) == set(heads)
