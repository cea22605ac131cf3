import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.token_batch import Span, make_token_batch


def span(first: int, count: int, table: list[int], first_token: int = 100) -> Span:
    token_ids = np.arange(first_token, first_token + count, dtype=np.int32)
    return Span(token_ids=token_ids, first_position=first, block_table=table)


def test_a_prefill_and_a_decode_by_hand() -> None:
    # Blocks of 32 tokens: positions 30..33 of one request, position 70 of another.
    batch = make_token_batch([span(30, 4, [7, 2]), span(70, 1, [5, 9, 4], 500)], 32)

    assert batch.token_ids.tolist() == [100, 101, 102, 103, 500]
    assert batch.spans.positions.tolist() == [30, 31, 32, 33, 70]
    assert batch.slots.tolist() == [7 * 32 + 30, 7 * 32 + 31, 2 * 32, 2 * 32 + 1, 4 * 32 + 6]
    assert batch.spans.starts.tolist() == [0, 4]
    assert batch.spans.tables.tolist() == [[7, 2, 0], [5, 9, 4]], "padded with the null block"


def test_blocks_beyond_the_tokens_so_far_are_not_read() -> None:
    # vLLM gives blocks ahead of time; what lies in them is another request's.
    batch = make_token_batch([span(0, 33, [3, 1, 8, 9]), span(9, 1, [6, 7])], 32)

    assert batch.spans.tables.tolist() == [[3, 1], [6, 0]]


def test_a_table_without_a_block_of_its_last_token_is_refused() -> None:
    with pytest.raises(AssertionError, match="no block"):
        make_token_batch([span(0, 40, [1]), span(0, 40, [5, 6])], 32)


@pytest.mark.parametrize("block_tokens", [16, 32, 128])
@given(
    shapes=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_every_token_is_placed_and_finds_its_own_context(
    block_tokens: int, shapes: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spans = [
        span(
            first,
            count,
            rng.integers(1, 1_000, -(-(first + count) // block_tokens) + 2).tolist(),
            first_token=1_000 * index,
        )
        for index, (first, count) in enumerate(shapes)
    ]

    batch = make_token_batch(spans, block_tokens)

    expected = []  # (token, position, block table) of every row, one at a time
    for one in spans:
        for offset, token in enumerate(one.token_ids.tolist()):
            expected.append((token, one.first_position + offset, one.block_table))
    assert batch.token_ids.tolist() == [token for token, _, _ in expected]
    assert batch.spans.positions.tolist() == [position for _, position, _ in expected]
    assert batch.slots.tolist() == [
        table[position // block_tokens] * block_tokens + position % block_tokens
        for _, position, table in expected
    ]
    assert [batch.token_ids[start] for start in batch.spans.starts] == [
        s.token_ids[0] for s in spans
    ]
    for given_span, first, table in zip(spans, batch.spans.starts, batch.spans.tables, strict=True):
        last = given_span.first_position + len(given_span.token_ids) - 1
        assert batch.spans.positions[first + len(given_span.token_ids) - 1] == last
        needed = last // block_tokens + 1
        assert table[:needed].tolist() == list(given_span.block_table[:needed])
        assert not table[needed:].any()
