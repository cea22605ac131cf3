"""What a front may send to the fast engine itself: all that it computes, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from serving.plugin.front_requests import refuse_front_request
from serving.plugin.requests import NotComputed

CONTEXT_TOKENS = 16
VOCABULARY = 100


def request(prompt: list[int] | None, params: Any = None, **changed: Any) -> EngineCoreRequest:
    fields: dict[str, Any] = {
        "request_id": "cmpl-1",
        "prompt_token_ids": prompt,
        "mm_features": None,
        "sampling_params": params or SamplingParams(max_tokens=4),
        "pooling_params": None,
        "arrival_time": 0.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(**(fields | changed))


def refuse(asked: EngineCoreRequest) -> None:
    refuse_front_request(asked, context_tokens=CONTEXT_TOKENS, vocabulary=VOCABULARY)


@given(
    st.lists(st.integers(-2, VOCABULARY + 1), max_size=CONTEXT_TOKENS + 2),
    st.none() | st.integers(1, 3 * CONTEXT_TOKENS),
)
def test_a_request_that_is_let_in_fits_the_context_and_the_vocabulary(
    prompt: list[int], max_tokens: int | None
) -> None:
    asked = request(prompt, SamplingParams(max_tokens=max_tokens))
    fits = 0 < len(prompt) < CONTEXT_TOKENS and all(0 <= each < VOCABULARY for each in prompt)

    if not fits:
        with pytest.raises(NotComputed, match="the prompt: expected"):
            refuse(asked)
        return
    refuse(asked)

    assert asked.sampling_params is not None
    left = CONTEXT_TOKENS - len(prompt)
    assert asked.sampling_params.max_tokens == min(left, max_tokens or left)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (request(None), "the prompt: expected 1 to 15 tokens, not 0"),
        (request([1], SamplingParams(logprobs=1)), "logprobs: not with this server's"),
        (request([1], SamplingParams(n=2)), "n: expected 1"),
        (request([1], object()), "object: only text generation"),
        (request([1], mm_features=[object()]), "the prompt: expected tokens alone"),
    ],
)
def test_the_rest_is_refused_by_name(asked: EngineCoreRequest, line: str) -> None:
    with pytest.raises(NotComputed, match=line):
        refuse(asked)
