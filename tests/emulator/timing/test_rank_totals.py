from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from emulator.arrays import Int64s
from emulator.specs.batch import StepBatch
from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_V3
from emulator.specs.catalog.gpt_oss import GPT_OSS_120B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B
from emulator.specs.catalog.trainium3 import TRAINIUM3
from emulator.specs.model import ModelSpec
from emulator.timing.issue_shape import IssueShape
from emulator.timing.rank_totals import RankTotals
from emulator.timing.rank_totals import rank_totals as rank_totals_of

SMALL_WINDOW = replace(GPT_OSS_120B, window_tokens=7)


def rank_totals(batch: StepBatch, model: ModelSpec, *, dummy: Int64s | None = None) -> RankTotals:
    shape = IssueShape.of(model, TRAINIUM3, tp=1, cores=1)
    return rank_totals_of(batch, model, shape, dummy=dummy)


def batch_of(ranks: int, rows: list[tuple[int, int, int]]) -> StepBatch:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return StepBatch(
        ranks=ranks,
        rank=columns[:, 0],
        new_tokens=columns[:, 1],
        context_tokens=columns[:, 2],
        logit_rows=np.bincount(columns[:, 0], minlength=ranks),
    )


def test_a_chunk_attends_causally_over_its_context() -> None:
    totals = rank_totals(batch_of(2, [(1, 3, 10), (1, 2, 0)]), QWEN3_30B_A3B)

    assert totals.attended.tolist() == [0, 11 + 12 + 13 + 1 + 2]
    assert totals.head_macs.tolist() == [0, 2 * 128 * 39]
    assert totals.context_tokens.tolist() == [0, 10]
    assert totals.tokens.tolist() == [0, 5]
    assert totals.logit_rows.tolist() == [0, 2]


def test_a_window_of_seven_holds_a_token_and_the_six_before_it() -> None:
    totals = rank_totals(batch_of(1, [(0, 4, 5), (0, 1, 100)]), SMALL_WINDOW)

    assert totals.window_attended.tolist() == [6 + 7 + 7 + 7 + 7]
    assert totals.window_context_tokens.tolist() == [5 + 6]
    assert totals.window_head_macs.tolist() == [2 * 64 * 34]


@given(st.integers(1, 40), st.integers(0, 40))
def test_window_pairs_equal_counting_keys_one_by_one(new: int, context: int) -> None:
    totals = rank_totals(batch_of(1, [(0, new, context)]), SMALL_WINDOW)

    assert totals.window_attended[0] == sum(
        min(position + 1, 7) for position in range(context, context + new)
    )


def test_a_prompt_in_chunks_attends_as_often_as_in_one_piece() -> None:
    whole = rank_totals(batch_of(1, [(0, 12, 0)]), SMALL_WINDOW)
    chunks = rank_totals(batch_of(1, [(0, 5, 0), (0, 5, 5), (0, 2, 10)]), SMALL_WINDOW)

    assert whole.attended.tolist() == chunks.attended.tolist()
    assert whole.window_attended.tolist() == chunks.window_attended.tolist()
    assert whole.tokens.tolist() == chunks.tokens.tolist()


def test_a_dummy_token_attends_to_itself_and_makes_no_logits() -> None:
    for model in (QWEN3_30B_A3B, SMALL_WINDOW, DEEPSEEK_V3):
        real = rank_totals(batch_of(2, [(0, 1, 0)]), model)
        dummy = rank_totals(batch_of(2, []), model, dummy=np.array([1, 0]))

        assert dummy.logit_rows.tolist() == [0, 0]
        for name in ("tokens", "attended", "head_macs", "window_attended", "window_head_macs"):
            assert getattr(dummy, name).tolist() == getattr(real, name).tolist()


@given(st.integers(1, 5_000), st.integers(0, 100_000))
def test_a_latent_request_never_needs_more_than_either_form(new: int, context: int) -> None:
    totals = rank_totals(batch_of(1, [(0, new, context)]), DEEPSEEK_V3)

    pairs = new * context + new * (new + 1) // 2
    folded = pairs * (576 + 512) + new * 512 * 256
    unfolded = pairs * (192 + 128) + (new + context) * 512 * 256
    assert totals.head_macs[0] == min(folded, unfolded)


def test_a_decode_of_a_group_of_heads_is_issued_as_64_rows_and_whole_tiles_by_hand() -> None:
    totals = rank_totals(batch_of(1, [(0, 1, 199)]), QWEN3_30B_A3B)

    # 8 query heads share a key head: 8 rows count as 64. 200 keys are two tiles, of outputs for the
    # scores, and to contract for the weighted sums
    assert totals.head_macs.tolist() == [2 * 128 * 200]
    assert totals.issued_head_macs.tolist() == [64 / 8 * (128 * 256 + 256 * 128)]


def test_a_window_is_issued_for_the_keys_that_it_holds_by_hand() -> None:
    totals = rank_totals(batch_of(1, [(0, 1, 1_000)]), SMALL_WINDOW)

    # 7 keys of 64 elements for 8 heads are one tile: scores contract half a tile, and sums fill
    # half of one's outputs
    assert totals.window_issued_head_macs.tolist() == [64 / 8 * (64 * 128 + 128 * 128)]


def slow_issued_macs(new: int, context: int, *, window: int = 10**9) -> float:
    """Of one of eight heads of 128: tile by tile, the queries that see any key of it."""
    tiles = -(-(context + new) // 128)
    passing = 0
    for query in range(context, context + new):
        first, last = max(0, query - window + 1) // 128, query // 128
        passing += last - first + 1
    return 2 * max(passing, 64 / 8 * tiles) * 128 * 128


@given(st.integers(1, 400), st.integers(0, 900))
def test_issued_macs_equal_passing_every_query_by_every_tile(new: int, context: int) -> None:
    totals = rank_totals(batch_of(1, [(0, new, context)]), QWEN3_30B_A3B)

    assert totals.issued_head_macs.tolist() == [slow_issued_macs(new, context)]


@given(st.integers(1, 900), st.integers(0, 127))
def test_a_windows_queries_pass_no_fewer_tiles_than_they_touch(new: int, context: int) -> None:
    windowed = replace(
        QWEN3_30B_A3B, query_key_norms=False, window_tokens=128, full_attention_every=2
    )
    totals = rank_totals(batch_of(1, [(0, new, context)]), windowed)

    issued = totals.window_issued_head_macs[0]
    assert issued >= slow_issued_macs(new, context, window=128)
    assert issued <= totals.issued_head_macs[0]
    assert issued <= 2 * max(2 * new, 64 / 8 * -(-(context + new) // 128)) * 128 * 128


def test_a_latents_heads_share_its_keys_and_fill_the_array_by_hand() -> None:
    totals = rank_totals(batch_of(1, [(0, 1, 127)]), DEEPSEEK_V3)

    # 128 heads are 128 rows over 128 keys, which is 4.5 and 4 tiles deep and wide; the fold's two
    # products of 128 x 512 are issued for 64 rows
    assert totals.issued_head_macs.tolist() == [128 * (576 + 512) + 64 * 2 * 128 * 512]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3_000)), min_size=1, max_size=6),
    st.sampled_from([QWEN3_30B_A3B, SMALL_WINDOW, DEEPSEEK_V3]),
)
def test_no_request_is_issued_as_less_than_it_computes(
    requests: list[tuple[int, int]], model: ModelSpec
) -> None:
    totals = rank_totals(batch_of(1, [(0, new, context) for new, context in requests]), model)

    assert totals.issued_head_macs[0] >= totals.head_macs[0] * (1 - 1e-12)
    assert totals.window_issued_head_macs[0] >= totals.window_head_macs[0] * (1 - 1e-12)
    assert totals.requests[0] == len(requests)
    assert totals.prefills[0] == sum(new > 1 or context == 0 for new, context in requests)


def test_a_latents_prefill_is_issued_unfolded_by_hand() -> None:
    totals = rank_totals(batch_of(1, [(0, 128, 0)]), DEEPSEEK_V3)

    # 128 queries over one tile of keys of 128 + 64 elements, which are one and a half tiles deep,
    # and of values of 128; keys and values of 128 tokens are made from the latent
    own = 128 * 128 * (192 + 128)
    assert totals.issued_head_macs.tolist() == [own + 128 * 2 * 128 * 512]
