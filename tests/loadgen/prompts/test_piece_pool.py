import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.prompts.piece_pool import HEAD_TOKENS, PiecePool


def pool(*items: int, seed: int = 0) -> PiecePool[int]:
    return PiecePool.of(items, chance=np.random.default_rng(seed))


def test_a_piece_is_a_head_and_a_rest_from_the_next_place() -> None:
    made = PiecePool(items=tuple(range(100, 150)), starts=(0, 40, 20))

    assert made.piece(0, 3) == (100, 101, 102)
    assert made.piece(0, 10) == (*range(100, 108), 140, 141)
    assert made.piece(2, 10) == (*range(120, 128), 100, 101)  # behind the last place, the first
    assert made.piece(3, 10) == (*range(100, 108), 120, 121)  # the first head again, further on


def test_a_window_past_the_end_begins_anew() -> None:
    made = PiecePool(items=(10, 11, 12), starts=(2,))

    assert made.piece(0, 8) == (12, 10, 11, 12, 10, 11, 12, 10)
    assert len(made.piece(0, 1_000)) == 1_000


def test_places_of_one_beginning_are_offered_once() -> None:
    # Two halves of 20: each beginning is there twice, except those that run into the seam.
    half = list(range(20))

    assert sorted(pool(*half, *half).starts) == half


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(ValueError, match="a pool has items"):
        pool()
    with pytest.raises(ValueError, match="a place to start"):
        PiecePool(items=(1,), starts=())


@given(
    items=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    key=st.integers(0, 10_000),
    lengths=st.tuples(st.integers(1, 120), st.integers(1, 120)),
)
def test_a_piece_has_its_length_and_the_shorter_begins_the_longer(
    items: list[int], key: int, lengths: tuple[int, int]
) -> None:
    shorter, longer = (pool(*items).piece(key, length) for length in sorted(lengths))

    assert (len(shorter), len(longer)) == tuple(sorted(lengths))
    assert longer[: len(shorter)] == shorter


@given(items=st.lists(st.integers(0, 1), min_size=1, max_size=24), seed=st.integers(0, 9))
def test_no_two_keys_begin_with_the_same_block(items: list[int], seed: int) -> None:
    made = pool(*items, seed=seed)
    blocks = {made.piece(key, 2 * HEAD_TOKENS) for key in range(made.keys)}

    assert len(blocks) == made.keys
    assert made.piece(made.keys, 2 * HEAD_TOKENS) == made.piece(0, 2 * HEAD_TOKENS)


@given(items=st.lists(st.integers(0, 1), min_size=1, max_size=60), seed=st.integers(0, 9))
def test_places_are_all_beginnings_and_no_beginning_twice(items: list[int], seed: int) -> None:
    around = items * (HEAD_TOKENS + 1)
    heads = [tuple(around[place : place + HEAD_TOKENS]) for place in range(len(items))]

    chosen = [heads[place] for place in pool(*items, seed=seed).starts]

    assert len(chosen) == len(set(chosen))
    assert set(chosen) == set(heads)
