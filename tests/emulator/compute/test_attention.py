import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.compute.attention_kernel import Scoring, Spans, TurnedBy
from emulator.compute.layer_kernel import attend, turn_heads
from emulator.compute.norms import rms_norm
from emulator.compute.paged_kv import PagedKv
from emulator.compute.rope import Rotation
from tests.emulator.compute.rotate_reference import rotate

BLOCK_TOKENS = 32
NO_SINKS = np.zeros(0, dtype=np.float32)

# (heads, kv_heads, head_dim)
HEADS = [(4, 2, 16), (3, 3, 8), (8, 1, 24), (2, 2, 7)]


@dataclass
class Context:
    """One request's queries, keys and values, and a pool that holds the latter two."""

    queries: np.ndarray  # [tokens, heads, head_dim]
    keys: np.ndarray  # [tokens, kv_heads, head_dim]
    values: np.ndarray
    kv: PagedKv
    table: np.ndarray  # [blocks of the context]

    def slots(self, positions: np.ndarray) -> np.ndarray:
        return self.table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS


def context(
    *, tokens: int, heads: tuple[int, int, int], seed: int = 0, spread: float = 1.0
) -> Context:
    """A context in shuffled blocks of a pool that is full of noise elsewhere."""
    rng = np.random.default_rng(seed)
    query_heads, kv_heads, head_dim = heads
    used = -(-tokens // BLOCK_TOKENS)
    blocks = used + 3
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
    table = rng.permutation(np.arange(1, blocks))[:used]
    made = Context(queries, keys, values, kv, table)
    kv.write(0, made.slots(np.arange(tokens)), keys, values)
    return made


def attended(
    context: Context,
    *spans: np.ndarray,
    window: int = 0,
    sinks: np.ndarray | None = None,
    kv: PagedKv | None = None,
) -> np.ndarray:
    """Attend these positions of a context, in spans of consecutive ones."""
    lengths = [len(span) for span in spans]
    tables = np.zeros((len(spans), len(context.table)), dtype=np.int64)
    for row, span in zip(tables, spans, strict=True):
        used = int(span[-1]) // BLOCK_TOKENS + 1
        row[:used] = context.table[:used]
    positions = np.concatenate(spans)
    return attend(
        context.queries[positions],
        *(kv or context.kv).layer(0),
        Spans(starts=np.cumsum([0, *lengths[:-1]]), positions=positions, tables=tables),
        Scoring(
            scale=context.queries.shape[2] ** -0.5,
            window=window,
            sinks=NO_SINKS if sinks is None else sinks,
        ),
    )


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
            two.slots(np.arange(2)),
            np.array([[[0, 9, 9, 9]], [[math.log(3), 9, 9, 9]]], dtype=np.float32),
            np.array([[[4, 0, 8, 1]], [[0, 4, 8, 1]]], dtype=np.float32),
        )

        out = attended(two, np.array([0, 1]))

        np.testing.assert_allclose(out[0, 0], [4, 0, 8, 1], rtol=1e-6)
        np.testing.assert_allclose(out[1, 0], [1, 3, 8, 1], rtol=1e-6)

    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
    def test_it_is_softmax_attention_over_the_past(
        self, heads: tuple[int, int, int], tokens: int
    ) -> None:
        one = context(tokens=tokens, heads=heads, seed=tokens)
        positions = np.arange(tokens)[-60:]

        out = attended(one, positions)

        np.testing.assert_allclose(out, attended_slowly(one, positions), atol=3e-6)

    def test_scores_in_the_hundreds_need_their_maximum_taken_off_and_get_it(self) -> None:
        sharp = context(tokens=200, heads=(4, 2, 16), spread=60.0)
        positions = np.arange(140, 200)

        out = attended(sharp, positions)

        np.testing.assert_allclose(out, attended_slowly(sharp, positions), atol=1e-4)

    @pytest.mark.parametrize("heads", HEADS)
    @pytest.mark.parametrize("window", [0, 1, 20, 128, 200, 1000])
    def test_windows_and_sinks_are_those_of_one_query_at_a_time(
        self, heads: tuple[int, int, int], window: int
    ) -> None:
        one = context(tokens=300, heads=heads)
        sinks = np.linspace(-3, 9, heads[0]).astype(np.float32)

        for positions in (np.arange(100, 164), np.array([299]), np.arange(3)):
            for some in (None, sinks):
                out = attended(one, positions, window=window, sinks=some)
                expected = attended_slowly(one, positions, window, some)
                np.testing.assert_allclose(out, expected, atol=1e-5)

    def test_values_may_be_narrower_than_keys(self) -> None:
        one = context(tokens=150, heads=(4, 2, 16))
        narrow = PagedKv(
            layers=1, kv_heads=2, key_dim=16, value_dim=6, blocks=20, block_tokens=BLOCK_TOKENS
        )
        positions = np.arange(150)
        narrow.write(0, one.slots(positions), one.keys, one.values[:, :, :6])

        out = attended(one, positions, kv=narrow)

        expected = attended(one, positions)[:, :, :6]
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)

    def test_a_query_does_not_see_a_later_key(self) -> None:
        one = context(tokens=200, heads=(4, 2, 16))
        before = attended(one, np.arange(100, 150))
        later = np.arange(150, 200)
        one.kv.write(0, one.slots(later), one.keys[later] + 100, one.values[later] - 100)

        assert (attended(one, np.arange(100, 150)) == before).all()


class TestBits:
    @pytest.mark.parametrize("window", [1, 30, 150])
    def test_a_query_with_a_window_has_the_same_bits_alone_and_among_others(
        self, window: int
    ) -> None:
        one = context(tokens=280, heads=(8, 2, 16))
        more: dict[str, Any] = {"window": window, "sinks": np.linspace(-2, 2, 8).astype(np.float32)}
        alone = [attended(one, np.array([p]), **more) for p in range(280)]

        for first, count in ((0, 64), (100, 63), (125, 16), (200, 80)):
            positions = np.arange(first, first + count)
            out = attended(one, positions, **more)
            assert (out == np.concatenate(alone)[positions]).all(), (first, count)

    @pytest.mark.parametrize("heads", HEADS)
    def test_a_query_has_the_same_bits_alone_and_in_every_block_of_queries(
        self, heads: tuple[int, int, int]
    ) -> None:
        one = context(tokens=280, heads=heads)
        alone = np.concatenate([attended(one, np.array([p])) for p in range(280)])

        for count in (2, 3, 5, 16, 63, 64):
            for first in (0, 1, 100, 125, 128, 216):
                positions = np.arange(first, first + count)
                assert (attended(one, positions) == alone[positions]).all(), (count, first)

    @given(
        spans=st.lists(st.tuples(st.integers(0, 279), st.integers(1, 40)), min_size=1, max_size=6),
        window=st.sampled_from([0, 1, 50]),
    )
    def test_requests_attended_together_have_the_bits_that_they_have_alone(
        self, spans: list[tuple[int, int]], window: int
    ) -> None:
        one = context(tokens=280, heads=(4, 2, 16))
        cut = [np.arange(first, min(280, first + count)) for first, count in spans]

        together = attended(one, *cut, window=window)

        alone = [attended(one, span, window=window) for span in cut]
        assert (together == np.concatenate(alone)).all()

    @pytest.mark.parametrize("window", [0, 40])
    @pytest.mark.parametrize("block_tokens", [1, 4, 8, 16, 64, 128])
    def test_blocks_of_another_size_give_the_same_bits(
        self, block_tokens: int, window: int
    ) -> None:
        one = context(tokens=280, heads=(4, 2, 16))
        positions = np.arange(150, 280)
        blocks = -(-280 // block_tokens)
        other = PagedKv(
            layers=1,
            kv_heads=2,
            key_dim=16,
            value_dim=16,
            blocks=blocks,
            block_tokens=block_tokens,
        )
        other.write(0, np.arange(280), one.keys, one.values)

        out = attend(
            one.queries[positions],
            *other.layer(0),
            Spans(starts=np.array([0]), positions=positions, tables=np.arange(blocks)[None]),
            Scoring(scale=16**-0.5, window=window, sinks=NO_SINKS),
        )

        assert (out == attended(one, positions, window=window)).all()

    def test_chips_that_divide_heads_compute_the_bits_of_one_that_has_all(self) -> None:
        one = context(tokens=200, heads=(8, 4, 16))
        positions = np.arange(130, 200)
        whole = attended(one, positions)

        for head in range(4):
            alone = Context(
                queries=one.queries[:, 2 * head : 2 * head + 2],
                keys=one.keys[:, head : head + 1],
                values=one.values[:, head : head + 1],
                kv=PagedKv(
                    layers=1,
                    kv_heads=1,
                    key_dim=16,
                    value_dim=16,
                    blocks=len(one.table) + 3,
                    block_tokens=BLOCK_TOKENS,
                ),
                table=one.table,
            )
            alone.kv.write(0, alone.slots(np.arange(200)), alone.keys, alone.values)
            assert (attended(alone, positions) == whole[:, 2 * head : 2 * head + 2]).all()


class TestTurning:
    @pytest.mark.parametrize("with_bias", [False, True])
    @pytest.mark.parametrize("with_norms", [False, True])
    def test_heads_are_biased_normalised_and_rotated_one_after_the_other(
        self, with_bias: bool, with_norms: bool
    ) -> None:
        rng = np.random.default_rng(0)
        groups, tokens, group_heads, head_dim = 3, 5, 2, 24
        columns = (group_heads + 2) * head_dim
        qkv = rng.standard_normal((groups, tokens, columns)).astype(np.float32)
        bias = rng.standard_normal((groups, columns)).astype(np.float32)
        norms = rng.standard_normal((group_heads + 1, head_dim)).astype(np.float32)
        angles = rng.uniform(0, 6, (tokens, head_dim // 2)).astype(np.float32)
        none = np.zeros((0, 0), dtype=np.float32)

        queries, keys, values = turn_heads(
            qkv,
            bias if with_bias else none,
            TurnedBy(
                norms=norms if with_norms else none,
                eps=1e-6,
                cos=np.cos(angles),
                sin=np.sin(angles),
            ),
        )

        rotation = Rotation(cos=np.cos(angles)[:, None], sin=np.sin(angles)[:, None])
        heads = qkv + bias[:, None] if with_bias else qkv
        heads = heads.reshape(groups, tokens, group_heads + 2, head_dim)
        for group in range(groups):
            for head in range(group_heads + 1):
                own = heads[group, :, head]
                turned = rotate(rms_norm(own, norms[head], 1e-6) if with_norms else own, rotation)
                found = queries[:, group * group_heads + head] if head < 2 else keys[:, group]
                np.testing.assert_allclose(found, turned, rtol=1e-5, atol=1e-6)
            assert (values[:, group] == heads[group, :, -1]).all()
        assert (qkv == np.random.default_rng(0).standard_normal(qkv.shape).astype("f4")).all()
