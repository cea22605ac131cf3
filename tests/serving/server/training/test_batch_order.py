import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.server.training.batch_order import IGNORED, BatchOrder, Windows, whole_text, windows_at

TEXT = np.arange(1_000, dtype=np.uint16)


def test_a_target_is_the_token_that_follows() -> None:
    windows = windows_at(TEXT, np.array([3, 500]), 4)

    assert windows.tokens.tolist() == [[3, 4, 5, 6], [500, 501, 502, 503]]
    assert windows.targets.tolist() == [[4, 5, 6, 7], [501, 502, 503, 504]]


def test_a_pass_takes_every_window_once_and_the_next_pass_in_another_order() -> None:
    order = BatchOrder(TEXT, sequences=9, length=10, seed=1)  # 99 windows: 11 batches a pass

    first = [order.batch(step).tokens[:, 0] for step in range(11)]
    second = [order.batch(step).tokens[:, 0] for step in range(11, 22)]

    for starts in (np.concatenate(first), np.concatenate(second)):
        assert len(np.unique(starts)) == 99
        assert len(np.unique(starts % 10)) == 1
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()


def test_a_batch_may_lie_across_two_passes() -> None:
    order = BatchOrder(TEXT, sequences=50, length=10, seed=1)

    starts = np.concatenate([order.batch(step).tokens[:, 0] for step in range(2)])

    assert len(np.unique(starts[:99])) == 99


@given(step=st.integers(0, 300), seed=st.integers(0, 5))
def test_a_batch_follows_from_seed_and_step_alone(step: int, seed: int) -> None:
    warm = BatchOrder(TEXT, sequences=7, length=9, seed=seed)
    for earlier in (0, step + 1, 250):
        warm.batch(earlier)

    found = warm.batch(step)

    cold = BatchOrder(TEXT, sequences=7, length=9, seed=seed).batch(step)
    assert np.array_equal(found.tokens, cold.tokens)
    assert np.array_equal(found.targets, cold.targets)


def test_other_seeds_have_other_orders() -> None:
    batches = [BatchOrder(TEXT, sequences=8, length=10, seed=seed).batch(0) for seed in range(3)]

    assert len({each.tokens.tobytes() for each in batches}) == 3


@given(sequences=st.integers(1, 20), parts=st.integers(1, 8))
def test_dealing_keeps_every_sequence_in_order(sequences: int, parts: int) -> None:
    rows = np.arange(sequences * 3, dtype=np.int32).reshape(sequences, 3)

    dealt = Windows(tokens=rows, targets=-rows).dealt(parts)

    assert len(dealt) == parts
    assert np.array_equal(np.concatenate([each.tokens for each in dealt]), rows)
    assert np.array_equal(np.concatenate([each.targets for each in dealt]), -rows)
    sizes = [len(each.tokens) for each in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_a_corpus_shorter_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^batch_tokens=1000: expected at most the corpus.s 990"):
        BatchOrder(TEXT, sequences=100, length=10, seed=0)


@given(tokens=st.integers(2, 200), length=st.integers(1, 40), stride_share=st.floats(0.01, 1))
def test_the_whole_text_asks_for_every_token_but_the_first_exactly_once(
    tokens: int, length: int, stride_share: float
) -> None:
    stride = max(1, int(length * stride_share))
    windows = whole_text(np.arange(tokens), length, stride=stride)

    asked = windows.targets[windows.targets != IGNORED]
    assert asked.tolist() == list(range(1, tokens))
    before = (windows.targets != IGNORED).argmax(axis=1)  # tokens before the first asked for
    later = windows.targets[1:]
    assert (before[1:][(later != IGNORED).any(axis=1)] >= length - stride).all()
    followed = windows.targets != IGNORED
    assert np.array_equal(windows.targets[followed], windows.tokens[followed] + 1)
