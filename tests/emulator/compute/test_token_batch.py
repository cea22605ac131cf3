import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.attention import QUERY_BLOCK_TOKENS
from emulator.compute.paged_kv import CHUNK_TOKENS
from emulator.compute.token_batch import Span, TokenBatch, make_token_batch


def span(first: int, count: int, table: list[int], first_token: int = 100) -> Span:
    token_ids = np.arange(first_token, first_token + count, dtype=np.int32)
    return Span(token_ids=token_ids, first_position=first, block_table=table)


def queries(batch: TokenBatch) -> list[tuple[int, int, list[int]]]:
    """Row, position and block table of every query of every item."""
    return [
        (row, position, table)
        for items in batch.items
        for rows, positions, table in zip(
            items.rows.tolist(), items.positions.tolist(), items.tables.tolist(), strict=True
        )
        for row, position in zip(rows, positions, strict=True)
    ]


def test_a_prefill_and_a_decode_by_hand() -> None:
    # Blocks of 32 tokens: positions 30..33 of one request, position 70 of another.
    batch = make_token_batch([span(30, 4, [7, 2]), span(70, 1, [5, 9, 4], 500)], 32)

    assert batch.token_ids.tolist() == [100, 101, 102, 103, 500]
    assert batch.positions.tolist() == [30, 31, 32, 33, 70]
    assert batch.slots.tolist() == [7 * 32 + 30, 7 * 32 + 31, 2 * 32, 2 * 32 + 1, 4 * 32 + 6]
    assert batch.starts.tolist() == [0, 4]
    decode, prefill = batch.items
    assert decode.rows.tolist() == [[4]]
    assert decode.positions.tolist() == [[70]]
    assert decode.tables.tolist() == [[5, 9, 4, 0]], "padded with the null block to a chunk"
    assert prefill.rows.tolist() == [[0, 1, 2, 3]]
    assert prefill.tables.tolist() == [[7, 2, 0, 0]]


def test_blocks_beyond_the_tokens_so_far_are_not_read() -> None:
    # vLLM gives blocks ahead of time; what lies in them is another request's.
    batch = make_token_batch([span(0, 33, [3, 1, 8, 9])], 32)

    (items,) = batch.items
    assert items.tables.tolist() == [[3, 1, 0, 0]]


def test_a_prefill_is_cut_into_query_blocks_that_see_no_more_chunks_than_they_need() -> None:
    table = list(range(1, 6))
    batch = make_token_batch([span(0, 150, table)], 32)

    assert [len(items.rows[0]) for items in batch.items] == [64, 64, 22]
    assert [items.tables.shape[1] * 32 // CHUNK_TOKENS for items in batch.items] == [1, 1, 2]


def test_decodes_are_grouped_by_the_power_of_two_of_their_chunks() -> None:
    table = list(range(1, 60))
    lasts = [0, 127, 128, 255, 256, 384, 511, 512, 1100]  # 1 1 2 2 3 4 4 5 9 chunks
    batch = make_token_batch([span(last, 1, table) for last in lasts], 32)

    assert [items.positions[:, 0].tolist() for items in batch.items] == [
        [0, 127],
        [128, 255],
        [256, 384, 511],
        [512],
        [1100],
    ]
    assert [items.tables.shape[1] * 32 // CHUNK_TOKENS for items in batch.items] == [1, 2, 4, 5, 9]


@pytest.mark.parametrize("block_tokens", [16, 32, 128])
@given(
    shapes=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_every_token_is_placed_attended_once_and_finds_its_own_context(
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
    assert batch.positions.tolist() == [position for _, position, _ in expected]
    assert batch.slots.tolist() == [
        table[position // block_tokens] * block_tokens + position % block_tokens
        for _, position, table in expected
    ]
    assert [batch.token_ids[start] for start in batch.starts] == [s.token_ids[0] for s in spans]
    seen = queries(batch)
    assert sorted(row for row, _, _ in seen) == list(range(len(expected)))
    for row, position, table in seen:
        assert position == expected[row][1]
        needed = position // block_tokens + 1
        assert table[:needed] == expected[row][2][:needed]
        assert len(table) % (CHUNK_TOKENS // block_tokens) == 0
    assert all(items.rows.shape[1] <= QUERY_BLOCK_TOKENS for items in batch.items)
