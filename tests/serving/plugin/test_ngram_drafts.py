"""Drafts by n-grams, and who gets none."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import RequestStatus

from serving.plugin.ngram_drafts import NgramDrafts

DRAFTS = NgramDrafts(min_tokens=1, max_tokens=3, count=3, max_model_len=64)


def request(tokens: list[int], **changes: Any) -> Any:
    """A request that decodes, of vLLM's attributes those that are read."""
    attributes: dict[str, Any] = {
        "status": RequestStatus.RUNNING,
        "num_computed_tokens": len(tokens) - 1,
        "num_tokens": len(tokens),
        "num_output_tokens": 2,
        "use_structured_output": False,
        "sampling_params": SamplingParams(),
        "all_token_ids": tokens,
        "spec_token_ids": [],
    }
    return SimpleNamespace(**attributes | changes)


@pytest.mark.long
def test_what_followed_the_longest_end_that_was_there_before() -> None:
    assert DRAFTS.after([1, 2, 3, 4, 9, 2, 3]) == [4, 9, 2]
    assert DRAFTS.after([1, 2, 7, 7, 7, 1, 2, 9, 9, 9, 1, 2]) == [7, 7, 7], "the first of equals"
    assert DRAFTS.after([1, 2, 3]) == []


@pytest.mark.long
def test_no_draft_is_longer_than_the_context() -> None:
    assert len(DRAFTS.after([5] * 62)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"use_structured_output": True},
        {"sampling_params": SamplingParams(logprobs=0)},
        {"sampling_params": SamplingParams(logprob_token_ids=[3])},
        {"num_computed_tokens": 3},
        {"num_output_tokens": 0},
        {"status": RequestStatus.PREEMPTED},
    ],
)
def test_a_request_without_a_row_to_spare_gets_none(changes: dict[str, Any]) -> None:
    tokens = [1, 2, 3, 1, 2]
    free, bound = request(tokens), request(tokens, **changes)

    DRAFTS.propose([SimpleNamespace(running=[free, bound])])  # type: ignore[list-item]

    assert free.spec_token_ids == [3, 1, 2]
    assert bound.spec_token_ids == []
