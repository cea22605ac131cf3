import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute import attention
from emulator.compute.attention import (
    AttentionItems,
    Scoring,
    attend,
    scores_are_bounded,
    tile_rows,
)
from emulator.compute.paged_kv import CHUNK_TOKENS, PagedKv
from emulator.compute.tiled_matmul import TILE_ROWS

BLOCK_TOKENS = 32
TABLE = CHUNK_TOKENS // BLOCK_TOKENS

# (heads, kv_heads, head_dim)
HEADS = [(4, 2, 16), (3, 3, 8), (8, 1, 24), (2, 2, 7)]


@dataclass
class Context:
    """One request's queries, keys and values, and a pool that holds the latter two."""

    queries: np.ndarray  # [tokens, heads, head_dim]
    keys: np.ndarray  # [tokens, kv_heads, head_dim]
    values: np.ndarray
    kv: PagedKv
    table: np.ndarray  # [chunks * blocks_per_chunk]


def context(
    *, tokens: int, heads: tuple[int, int, int], seed: int = 0, spread: float = 1.0
) -> Context:
    """A context in shuffled blocks of a pool that is full of noise elsewhere."""
    rng = np.random.default_rng(seed)
    query_heads, kv_heads, head_dim = heads
    chunks = -(-tokens // CHUNK_TOKENS)
    blocks = chunks * TABLE + 3
    kv = PagedKv(
        layers=1,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
    )
    noise = rng.standard_normal((2, blocks * BLOCK_TOKENS, kv_heads, head_dim)) * 5
    kv.write(0, np.arange(blocks * BLOCK_TOKENS), *noise.astype(np.float32))
    queries = (spread * rng.standard_normal((tokens, query_heads, head_dim))).astype(np.float32)
    keys, values = rng.standard_normal((2, tokens, kv_heads, head_dim)).astype(np.float32)
    table = rng.permutation(np.arange(1, blocks))[: chunks * TABLE]
    positions = np.arange(tokens)
    kv.write(
        0, table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS, keys, values
    )
    return Context(queries, keys, values, kv, table)


def items_of(context: Context, positions: np.ndarray) -> AttentionItems:
    """One item: these positions, their rows in a batch of just them."""
    chunks = int(positions.max()) // CHUNK_TOKENS + 1
    return AttentionItems(
        rows=np.arange(len(positions))[None],
        positions=positions[None],
        tables=context.table[None, : chunks * TABLE],
    )


def scoring_of(
    context: Context, *, bounded: bool = True, window: int = 0, sinks: np.ndarray | None = None
) -> Scoring:
    scale = context.queries.shape[2] ** -0.5
    return Scoring(scale=scale, bounded=bounded, window=window, sinks=sinks)


def attended(
    context: Context, positions: np.ndarray, *, bounded: bool = True, **more: Any
) -> np.ndarray:
    queries = context.queries[positions]
    out = np.full_like(queries, np.nan)
    scoring = scoring_of(context, bounded=bounded, **more)
    attend(queries, context.kv, 0, items_of(context, positions), out, scoring)
    return out


def attended_slowly(
    context: Context, positions: np.ndarray, window: int = 0, sinks: np.ndarray | None = None
) -> np.ndarray:
    """The obvious reference: one query of one head at a time, in float64."""
    heads, head_dim = context.queries.shape[1:]
    group = heads // context.keys.shape[1]
    out = np.empty((len(positions), heads, head_dim))
    for row, position in enumerate(positions):
        for head in range(heads):
            keys = context.keys[: position + 1, head // group].astype(np.float64)
            scores = keys @ context.queries[position, head] / math.sqrt(head_dim)
            first = max(0, position + 1 - window) if window else 0
            weights = np.exp(scores - scores.max())[first:]
            values = context.values[first : position + 1, head // group]
            sink = 0.0 if sinks is None else np.exp(sinks[head] - scores.max())
            out[row, head] = weights @ values / (weights.sum() + sink)
    return out


class TestOneItem:
    def test_two_keys_by_hand(self) -> None:
        # A score of ln 3 against 0: the second value weighs three quarters.
        two = context(tokens=2, heads=(1, 1, 4))
        two.queries[1, 0] = [2.0, 0.0, 0.0, 0.0]  # over the root of 4
        two.kv.write(
            0,
            two.table[[0, 0]] * BLOCK_TOKENS + np.array([0, 1]),
            np.array([[[0, 9, 9, 9]], [[math.log(3), 9, 9, 9]]], dtype=np.float32),
            np.array([[[4, 0, 8, 1]], [[0, 4, 8, 1]]], dtype=np.float32),
        )

        out = attended(two, np.array([0, 1]))

        np.testing.assert_allclose(out[0, 0], [4, 0, 8, 1], rtol=1e-6)
        np.testing.assert_allclose(out[1, 0], [1, 3, 8, 1], rtol=1e-6)

    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
    @pytest.mark.parametrize("bounded", [True, False])
    def test_it_is_softmax_attention_over_the_past(
        self, heads: tuple[int, int, int], tokens: int, bounded: bool
    ) -> None:
        one = context(tokens=tokens, heads=heads, seed=tokens)
        positions = np.arange(tokens)[-60:]

        out = attended(one, positions, bounded=bounded)

        np.testing.assert_allclose(out, attended_slowly(one, positions), atol=3e-6)

    def test_scores_in_the_hundreds_need_their_maximum_taken_off_and_get_it(self) -> None:
        sharp = context(tokens=200, heads=(4, 2, 16), spread=60.0)
        positions = np.arange(140, 200)

        out = attended(sharp, positions, bounded=False)

        np.testing.assert_allclose(out, attended_slowly(sharp, positions), atol=1e-4)

    def test_results_go_to_the_rows_that_the_queries_came_from(self) -> None:
        one = context(tokens=30, heads=(4, 2, 16))
        positions = np.array([3, 29, 11])
        expected = attended(one, positions)
        rows = np.array([[5, 0, 2]])
        queries = np.zeros((6, 4, 16), dtype=np.float32)
        queries[rows[0]] = one.queries[positions]
        out = np.full_like(queries, 7.0)
        items = AttentionItems(rows=rows, positions=positions[None], tables=one.table[None])

        attend(queries, one.kv, 0, items, out, scoring_of(one))

        assert (out[rows[0]] == expected).all()
        assert (out[[1, 3, 4]] == 7.0).all(), "other rows are left alone"

    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize("window", [0, 1, 20, 128, 200, 1000])
    def test_windows_and_sinks_are_those_of_one_query_at_a_time(
        self, heads: tuple[int, int, int], window: int
    ) -> None:
        one = context(tokens=300, heads=heads)
        sinks = np.linspace(-3, 9, heads[0]).astype(np.float32)

        for positions in (np.arange(100, 164), np.array([299]), np.arange(3)):
            for some in (None, sinks):
                out = attended(one, positions, bounded=False, window=window, sinks=some)
                expected = attended_slowly(one, positions, window, some)
                np.testing.assert_allclose(out, expected, atol=1e-5)

    def test_values_may_be_narrower_than_keys(self) -> None:
        one = context(tokens=150, heads=(4, 2, 16))
        narrow = PagedKv(
            layers=1, kv_heads=2, key_dim=16, value_dim=6, blocks=20, block_tokens=BLOCK_TOKENS
        )
        positions = np.arange(150)
        slots = one.table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        narrow.write(0, slots, one.keys, one.values[:, :, :6])
        out = np.empty((150, 4, 6), dtype=np.float32)

        attend(one.queries, narrow, 0, items_of(one, positions), out, scoring_of(one))

        expected = attended(one, positions)[:, :, :6]
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)

    def test_what_is_hidden_is_known_for_each_layout_of_the_rows(self) -> None:
        items = AttentionItems(
            rows=np.array([[0, 1]]),
            positions=np.array([[0, 130]]),
            tables=np.zeros((1, 2 * TABLE), dtype=np.int64),
        )

        # [items, chunks, tiles, tile, CHUNK_TOKENS]: two heads a key head, in one tile or in two.
        whole, tiled = (
            items.unseen(group=2, tile=4, window=0),
            items.unseen(group=1, tile=1, window=0),
        )

        assert whole.shape == (1, 2, 1, 4, CHUNK_TOKENS)
        assert tiled.shape == (1, 2, 2, 1, CHUNK_TOKENS)
        visible = (~whole).sum(axis=(0, 1, 2, 4)).tolist()
        assert visible == [1, 1, 131, 131]
        assert (~tiled).sum(axis=(0, 1, 3, 4)).tolist() == [1, 131]
        assert items.unseen(group=2, tile=4, window=0) is whole, "made once for all layers"

    def test_a_query_does_not_see_a_later_key(self) -> None:
        one = context(tokens=200, heads=(4, 2, 16))
        before = attended(one, np.arange(100, 150))
        later = np.arange(150, 200)
        slots = one.table[later // BLOCK_TOKENS] * BLOCK_TOKENS + later % BLOCK_TOKENS
        one.kv.write(0, slots, one.keys[later] + 100, one.values[later] - 100)

        assert (attended(one, np.arange(100, 150)) == before).all()


class TestBits:
    @pytest.mark.parametrize("window", [1, 30, 150])
    def test_a_query_with_a_window_has_the_same_bits_alone_and_among_others(
        self, window: int
    ) -> None:
        one = context(tokens=280, heads=(8, 2, 16))
        more = {"window": window, "sinks": np.linspace(-2, 2, 8).astype(np.float32)}
        alone = [attended(one, np.array([p]), bounded=False, **more) for p in range(280)]

        for first, count in ((0, 64), (100, 63), (125, 16), (200, 80)):
            positions = np.arange(first, first + count)
            out = attended(one, positions, bounded=False, **more)
            assert (out == np.concatenate(alone)[positions]).all(), (first, count)

    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize("bounded", [True, False])
    @pytest.mark.parametrize("tiled", [False, True])
    def test_a_query_has_the_same_bits_alone_and_in_every_block_of_queries(
        self,
        heads: tuple[int, int, int],
        bounded: bool,
        tiled: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if tiled:  # what a host does whose BLAS depends on the height of a product
            monkeypatch.setattr(attention, "tile_rows", lambda *_: TILE_ROWS)
        one = context(tokens=280, heads=heads)
        alone = np.concatenate([attended(one, np.array([p]), bounded=bounded) for p in range(280)])

        for count in (2, 3, 5, 16, 63, 64):
            for first in (0, 1, 100, 125, 128, 216):
                positions = np.arange(first, first + count)
                out = attended(one, positions, bounded=bounded)
                assert (out == alone[positions]).all(), (count, first)

    def test_tiles_give_the_bits_of_one_call_where_one_call_is_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one = context(tokens=280, heads=(8, 4, 16))
        positions = np.arange(200, 264)
        whole = attended(one, positions)
        used = tile_rows(128, 16, 16)
        monkeypatch.setattr(attention, "tile_rows", lambda *_: TILE_ROWS)

        assert used in (128, TILE_ROWS)
        assert (attended(one, positions) == whole).all()

    @given(
        lengths=st.lists(st.integers(1, 280), min_size=1, max_size=6),
        extra_chunks=st.integers(0, 2),
        bounded=st.booleans(),
    )
    def test_requests_attended_together_have_the_bits_that_they_have_alone(
        self, lengths: list[int], extra_chunks: int, bounded: bool
    ) -> None:
        # One query at the end of each length of one context, and the null block for padding.
        one = context(tokens=280, heads=(4, 2, 16))
        last = np.array(lengths) - 1
        chunks = int(last.max()) // CHUNK_TOKENS + 1 + extra_chunks
        tables = np.zeros((len(last), chunks * TABLE), dtype=np.int64)
        for row, position in enumerate(last):
            blocks = position // BLOCK_TOKENS + 1
            tables[row, :blocks] = one.table[:blocks]
        # The batch's order is not the items'.
        rows = np.random.default_rng(0).permutation(len(last))
        queries = np.empty((len(last), 4, 16), dtype=np.float32)
        queries[rows] = one.queries[last]
        out = np.empty_like(queries)
        items = AttentionItems(
            rows=rows[:, None],
            positions=last[:, None],
            tables=tables[:, : (int(last.max()) // CHUNK_TOKENS + 1) * TABLE],
        )

        attend(queries, one.kv, 0, items, out, scoring_of(one, bounded=bounded))

        for row, position in zip(rows, last, strict=True):
            assert (out[row] == attended(one, np.array([position]), bounded=bounded)[0]).all()


class TestBound:
    def test_the_longest_vectors_point_the_same_way(self) -> None:
        ones = np.ones(16, dtype=np.float32)

        # The root of 16 times the largest weights: 4 * 3 * 5 = 60.
        assert scores_are_bounded(3 * ones, 5 * ones)
        assert scores_are_bounded(-3 * ones, 5 * ones)
        assert not scores_are_bounded(3 * ones, np.float32(5.01) * ones)

    def test_a_rotation_that_lengthens_both_counts_twice(self) -> None:
        ones = np.ones(16, dtype=np.float32)

        assert scores_are_bounded(3 * ones, 1.25 * ones, rotation_gain=2.0)
        assert not scores_are_bounded(3 * ones, 1.26 * ones, rotation_gain=2.0)

    def test_one_large_weight_is_enough_of_either_sign(self) -> None:
        weights = np.ones(16, dtype=np.float32)
        weights[7] = -30.0

        assert not scores_are_bounded(weights, np.ones(16, dtype=np.float32))
        assert not scores_are_bounded(np.ones(16, dtype=np.float32), weights)

    @given(st.integers(1, 64), st.integers(0, 2**32))
    def test_no_score_of_normalised_vectors_exceeds_the_bound(self, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        query_norm, key_norm = rng.uniform(-8, 8, (2, width)).astype(np.float32)
        query, key = rng.standard_normal((2, width))
        # The worst direction among the random ones: along the weights themselves.
        for vector in (query, key, np.eye(width)[int(np.abs(query_norm * key_norm).argmax())]):
            unit = vector / math.sqrt(np.square(vector).mean())
            score = (unit * query_norm) @ (unit * key_norm) / math.sqrt(width)
            if scores_are_bounded(query_norm, key_norm):
                assert abs(score) <= attention.SAFE_SCORE * (1 + 1e-6)


class TestTiles:
    @given(st.integers(1, 512), st.sampled_from([7, 16, 24, 32, 64, 128]))
    def test_an_item_goes_whole_or_in_tiles_of_the_fixed_height(
        self, rows: int, head_dim: int
    ) -> None:
        # One row alone would go to another kernel of the BLAS: whole items have an even height.
        assert tile_rows(rows, head_dim, 2 * head_dim) in (rows + rows % 2, TILE_ROWS)
