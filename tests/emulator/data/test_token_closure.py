"""Closed token sets, on tokenizers small enough to see through."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from emulator.data.token_closure import changing_pairs, closed_token_ids


def bpe(*merges: tuple[str, str]) -> Tokenizer:
    pieces = ["a", "b", "c", *(left + right for left, right in merges)]
    vocabulary = {piece: token_id for token_id, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def test_tokens_without_merges_are_closed() -> None:
    assert closed_token_ids(bpe(), [0, 1, 2]) == [0, 1, 2]


def test_of_two_tokens_that_merge_one_stays() -> None:
    tokenizer = bpe(("a", "b"))

    assert changing_pairs(tokenizer, [0, 1, 2]).tolist() == [
        [False, True, False],
        [False, False, False],
        [False, False, False],
    ]
    assert closed_token_ids(tokenizer, [0, 1, 2, 3]) == [1, 2, 3]


def test_a_token_that_merges_with_itself_goes_and_its_pair_stays() -> None:
    assert closed_token_ids(bpe(("a", "a")), [0, 1, 2, 3]) == [1, 2, 3]


def test_a_token_that_loses_its_end_to_the_next_one_changes() -> None:
    tokenizer = bpe(("b", "c"), ("a", "b"))  # "ab" and "c" read back as "a" and "bc"

    changes = changing_pairs(tokenizer, [4, 2])

    assert changes.tolist() == [[False, True], [False, False]]


LETTERS = st.sampled_from("abc")


@st.composite
def tokenizers(draw: st.DrawFn) -> Tokenizer:
    """BPE with random merges, each of pieces that exist before it."""
    pieces, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(1, 8))):
        merge = (draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces)))
        if "".join(merge) not in pieces:
            pieces.append("".join(merge))
            merges.append(merge)
    return bpe(*merges)


@pytest.mark.long
@settings(max_examples=100)
@given(tokenizers())
def test_any_sequence_of_closed_tokens_reads_back_as_itself(tokenizer: Tokenizer) -> None:
    every = list(range(tokenizer.get_vocab_size()))
    closed = closed_token_ids(tokenizer, every)

    assert closed
    for sequence in itertools.chain.from_iterable(
        itertools.islice(itertools.product(closed, repeat=length), 400) for length in (1, 2, 3, 4)
    ):
        text = tokenizer.decode(list(sequence))
        assert tokenizer.encode(text).ids == list(sequence)
