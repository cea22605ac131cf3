"""SchedulerOutput to RankStep and RankOutput to ModelRunnerOutput, by hand-worked cases."""

from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.core.sched.output import (
    CachedRequestData,
    GrammarOutput,
    NewRequestData,
    SchedulerOutput,
)

from emulator.specs.step import NewRequest, RankOutput, RankStep, RowLogprobs, Scheduled
from serving.engine.step_batch import seen_tokens, step_batch
from serving.plugin.kv_transfer_params import has_unseen_token
from serving.plugin.requests import sampling_spec
from serving.plugin.translate import grammar_bitmask, model_runner_output, rank_step

PARAMS = SamplingParams(temperature=0.0, max_tokens=9)


def new_request(name: str, prompt: list[int], **changes: Any) -> NewRequestData:
    given: dict[str, Any] = {
        "req_id": name,
        "prompt_token_ids": prompt,
        "mm_features": [],
        "sampling_params": PARAMS,
        "pooling_params": None,
        "block_ids": ([1, 2],),
        "num_computed_tokens": 0,
        "lora_request": None,
    }
    return NewRequestData(**(given | changes))


def decided(
    counts: dict[str, int],
    *,
    new: list[NewRequestData] | None = None,
    cached: dict[str, tuple[int, tuple[list[int], ...] | None]] | None = None,
    resumed: set[str] | None = None,
    copies: list[KVCacheBlockCopy] | None = None,
) -> SchedulerOutput:
    """What a scheduler decided; `cached` has computed tokens and new blocks of each request."""
    rows = cached or {}
    return SchedulerOutput(
        scheduled_new_reqs=new or [],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=list(rows),
            resumed_req_ids=resumed or set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[blocks for _, blocks in rows.values()],
            num_computed_tokens=[computed for computed, _ in rows.values()],
            num_output_tokens=[1 for _ in rows],
        ),
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=set(),
        free_encoder_mm_hashes=[],
        kv_cache_block_copies=copies,
    )


def test_a_new_request_comes_with_its_tokens_blocks_sampling_and_what_a_prefix_hit_left() -> None:
    output = decided({"a": 3}, new=[new_request("a", [5, 6, 7, 8, 9], num_computed_tokens=2)])

    step = rank_step(1, output, ["gone"], 11, None)

    assert step == RankStep(
        rank=1,
        new=[
            NewRequest(
                request_id="a",
                token_ids=[5, 6, 7, 8, 9],
                prompt_tokens=5,
                sampling=sampling_spec(PARAMS, "a", 11),
                block_ids=[1, 2],
            )
        ],
        scheduled=[Scheduled(request_id="a", first_position=2, new_tokens=3)],
        finished=["gone"],
    )


def test_a_request_that_comes_again_as_new_brings_what_it_had_generated() -> None:
    again = new_request("a", [5, 6, 7], prefill_token_ids=[5, 6, 7, 40, 41])

    (new,) = rank_step(0, decided({"a": 5}, new=[again]), [], 0, None).new

    assert (new.token_ids, new.prompt_tokens) == ([5, 6, 7, 40, 41], 3)


def test_known_requests_come_as_differences_of_their_block_tables() -> None:
    output = decided(
        {"decode": 1, "chunk": 16, "resumed": 4, "bare": 1},
        cached={
            "decode": (32, ([9],)),
            "chunk": (64, ([10, 11],)),
            "resumed": (0, ([3, 4],)),
            "bare": (17, None),
        },
        resumed={"resumed"},
    )

    step = rank_step(0, output, [], 0, None)

    assert step.new == []
    assert step.scheduled == [
        Scheduled(request_id="decode", first_position=32, new_tokens=1, new_block_ids=[9]),
        Scheduled(request_id="chunk", first_position=64, new_tokens=16, new_block_ids=[10, 11]),
        Scheduled(
            request_id="resumed",
            first_position=0,
            new_tokens=4,
            new_block_ids=[3, 4],
            replaces_blocks=True,
        ),
        Scheduled(request_id="bare", first_position=17, new_tokens=1, new_block_ids=[]),
    ]


@pytest.mark.parametrize(
    ("max_tokens", "extra", "is_unseen"),
    [
        (1, {"kv_transfer_params": {"do_remote_decode": True}}, True),
        (9, {"kv_transfer_params": {"do_remote_decode": True}}, False),
        (1, {"kv_transfer_params": {"do_remote_prefill": True}}, False),
        (1, {"kv_transfer_params": "do_remote_decode"}, False),
        (1, None, False),
    ],
)
def test_the_one_token_of_a_prompt_for_another_engine_is_unseen(
    max_tokens: int, extra: dict[str, Any] | None, is_unseen: bool
) -> None:
    params = SamplingParams(max_tokens=max_tokens, extra_args=extra)
    assert has_unseen_token(new_request("a", [5, 6], sampling_params=params)) == is_unseen


def test_unseen_tokens_are_made_and_not_counted() -> None:
    output = decided({"a": 3, "b": 3}, new=[new_request(name, [5, 6, 7]) for name in "ab"])
    step = rank_step(0, output, [], 0, None, {"b", "of another step"})
    assert step.unseen == ["b"]
    made = RankOutput(
        rank=0,
        request_ids=["a", "b"],
        token_ids=np.array([4, 5], dtype=np.int32),
        logprobs=None,
        prompt_logprobs={},
    )
    assert seen_tokens([step], {0: made}) == 1
    assert step_batch([step], {0: made}, 1).logit_rows.tolist() == [2]


def test_new_requests_come_before_known_ones_and_copies_of_blocks_go_along() -> None:
    output = decided(
        {"known": 1, "new": 3},
        new=[new_request("new", [5, 6, 7])],
        cached={"known": (8, None)},
        copies=[KVCacheBlockCopy(src_block_id=4, dst_block_id=7)],
    )

    step = rank_step(0, output, [], 0, None)

    assert [item.request_id for item in step.scheduled] == ["new", "known"]
    assert step.block_copies == [(4, 7)]


def test_the_bitmask_of_a_rank_has_the_rows_of_its_own_requests_in_their_order() -> None:
    mask = np.arange(12, dtype=np.int32).reshape(4, 3)
    grammar = GrammarOutput(["elsewhere", "b", "also elsewhere", "a"], mask)
    output = decided(
        {"a": 1, "free": 1, "b": 1}, cached=dict.fromkeys(("a", "free", "b"), (3, None))
    )

    step = rank_step(0, output, [], 0, grammar)
    rows = grammar_bitmask(step, grammar)

    assert step.grammar_rows == ["b", "a"]
    assert rows is not None
    assert rows.tolist() == [mask[1].tolist(), mask[3].tolist()]
    assert rows.dtype == np.int32
    assert rows.flags.c_contiguous


def test_a_rank_without_constrained_requests_has_no_bitmask() -> None:
    grammar = GrammarOutput(["elsewhere"], np.zeros((1, 3), dtype=np.int32))
    step = rank_step(0, decided({"a": 1}, cached={"a": (3, None)}), [], 0, grammar)

    assert grammar_bitmask(step, grammar) is None
    assert grammar_bitmask(step, None) is None


def rank_output(rank: int, tokens: dict[str, int], **changes: Any) -> RankOutput:
    given: dict[str, Any] = {"logprobs": None, "prompt_logprobs": {}}
    return RankOutput(
        rank=rank,
        request_ids=list(tokens),
        token_ids=np.array(list(tokens.values()), dtype=np.int32),
        **(given | changes),
    )


def step_of(rank: int, **new_tokens: int) -> RankStep:
    scheduled = [
        Scheduled(request_id=name, first_position=10 * (place + 1), new_tokens=count)
        for place, (name, count) in enumerate(new_tokens.items())
    ]
    return RankStep(rank=rank, new=[], scheduled=scheduled, finished=[])


def report(rows: list[tuple[list[int], list[float], int]]) -> RowLogprobs:
    return RowLogprobs(
        token_ids=np.array([ids for ids, _, _ in rows], dtype=np.int32),
        logprobs=np.array([scores for _, scores, _ in rows], dtype=np.float32),
        ranks=np.array([place for _, _, place in rows], dtype=np.int32),
    )


def test_every_scheduled_request_has_a_row_and_only_those_that_sampled_have_a_token() -> None:
    steps = [step_of(0, a=16, b=1), step_of(2, c=1)]
    outputs = {2: rank_output(2, {"c": 30}), 0: rank_output(0, {"b": 20})}

    result = model_runner_output(steps, outputs)

    assert result.req_ids == ["a", "b", "c"]
    assert result.req_id_to_index == {"a": 0, "b": 1, "c": 2}
    assert result.sampled_token_ids == [[], [20], [30]]
    assert result.logprobs is None
    assert result.prompt_logprobs_dict == {}


def test_tokens_are_plain_numbers_that_vllm_can_send() -> None:
    (row,) = model_runner_output([step_of(0, a=1)], {0: rank_output(0, {"a": 7})}).sampled_token_ids

    assert [type(token) for token in row] == [int]


def test_log_probabilities_are_laid_out_as_wide_as_the_widest_and_padded_with_impossible() -> None:
    wide = report([([20, 8, 9], [-0.5, -0.1, -1.0], 2)])
    narrow = report([([30, 31], [-2.0, -0.25], 5), ([40, 41], [-3.0, -0.75], 6)])
    steps = [step_of(0, a=16, b=1), step_of(1, c=1, d=1), step_of(2, e=1)]
    outputs = {
        0: rank_output(0, {"b": 20}, logprobs=wide),
        1: rank_output(1, {"d": 30, "c": 40}, logprobs=narrow),
        2: rank_output(2, {"e": 50}),
    }

    lists = model_runner_output(steps, outputs).logprobs

    assert lists is not None
    never = -np.inf
    assert lists.logprob_token_ids.tolist() == [
        [0, 0, 0],
        [20, 8, 9],
        [40, 41, 0],
        [30, 31, 0],
        [0, 0, 0],
    ]
    assert lists.logprobs.tolist() == [
        [never, never, never],
        [-0.5, np.float32(-0.1), -1.0],
        [-3.0, -0.75, never],
        [-2.0, -0.25, never],
        [never, never, never],
    ]
    assert lists.sampled_token_ranks.tolist() == [0, 2, 6, 5, 0]
    # As vLLM's scheduler takes a request's rows:
    assert lists.slice_request(3, 1).logprob_token_ids.tolist() == [[30, 31, 0]]


def test_prompt_log_probabilities_become_vllm_s_tensors() -> None:
    rows = report([([6, 9], [-0.5, -0.25], 2), ([7, 7], [-0.125, -0.125], 1)])
    outputs = {0: rank_output(0, {"a": 7}, prompt_logprobs={"a": rows})}

    tensors = model_runner_output([step_of(0, a=3)], outputs).prompt_logprobs_dict["a"]

    assert tensors is not None
    assert tensors.logprob_token_ids.tolist() == [[6, 9], [7, 7]]
    assert tensors.logprobs.tolist() == [[-0.5, -0.25], [-0.125, -0.125]]
    assert tensors.selected_token_ranks.tolist() == [2, 1]


def test_the_cost_model_counts_what_was_scheduled_and_the_rows_that_were_scored() -> None:
    steps = [step_of(0, a=16, b=1), step_of(2, c=5)]
    scored = report([([1], [-1.0], 1)] * 4)
    outputs = {
        0: rank_output(0, {"b": 20}),
        2: rank_output(2, {"c": 30}, prompt_logprobs={"c": scored}),
    }

    batch = step_batch(steps, outputs, 4)

    assert batch.ranks == 4
    assert batch.rank.tolist() == [0, 0, 2]
    assert batch.new_tokens.tolist() == [16, 1, 5]
    assert batch.context_tokens.tolist() == [10, 20, 10]
    assert batch.logit_rows.tolist() == [1, 0, 5, 0]


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_scored_in_earlier_chunks_never_exceed_the_step_s_tokens(rows: int) -> None:
    outputs = {
        0: rank_output(0, {"a": 7}, prompt_logprobs={"a": report([([1], [-1.0], 1)] * rows)})
    }

    assert step_batch([step_of(0, a=6)], outputs, 1).logit_rows.tolist() == [min(6, rows + 1)]
