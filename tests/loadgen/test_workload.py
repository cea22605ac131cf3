from itertools import islice

import numpy as np
import pytest

from loadgen.prompt_pool import HEAD_TOKENS, PromptPool
from loadgen.prompt_text import paragraphs
from loadgen.request import Request
from loadgen.trace import TraceRow
from loadgen.workload import cut_lengths, make_workload


def rows(*lengths: tuple[int, int]) -> tuple[TraceRow, ...]:
    return tuple(
        TraceRow(arrival_ns=at, input_tokens=inputs, output_tokens=outputs)
        for at, (inputs, outputs) in enumerate(lengths)
    )


def english(count: int = 2_000) -> PromptPool:
    return PromptPool.of_words("".join(islice(paragraphs(0), count)))


def as_ids(pool: PromptPool) -> PromptPool:
    return PromptPool(tokens=pool.tokens)


def test_caps_cut_only_what_is_longer_and_count_what_they_took() -> None:
    cut, cuts = cut_lengths(
        rows((10, 5), (20, 50), (30, 60)), max_input_tokens=15, max_output_tokens=50
    )

    assert [(row.input_tokens, row.output_tokens) for row in cut] == [(10, 5), (15, 50), (15, 50)]
    assert (cuts.input_cut_requests, cuts.input_tokens_cut) == (2, 5 + 15)
    assert (cuts.output_cut_requests, cuts.output_tokens_cut) == (1, 10)
    assert [row.arrival_ns for row in cut] == [0, 1, 2]


def test_without_caps_lengths_are_kept() -> None:
    recorded = rows((10, 5), (20, 50))
    kept, cuts = cut_lengths(recorded, max_input_tokens=None, max_output_tokens=None)

    assert kept == recorded
    assert cuts.input_cut_requests == cuts.output_cut_requests == 0


def test_requests_have_exactly_the_recorded_lengths() -> None:
    recorded = rows((1, 1), (17, 3), (100_000, 9))
    workload = make_workload(recorded, as_ids(english()), warmups=0, seed=0)

    for index, row in enumerate(recorded):
        request = workload.request(index)
        assert len(request.prompt) == request.input_tokens == row.input_tokens
        assert request.output_tokens == row.output_tokens
        assert request.request_id == index


def test_no_two_prompts_and_no_warmup_begin_with_the_same_block() -> None:
    workload = make_workload(rows(*[(200, 1)] * 3_000), as_ids(english()), warmups=5, seed=1)
    made = [workload.request(index) for index in range(3_000)]
    made += [workload.warmup_request(index) for index in range(5)]

    heads = {request.prompt[:HEAD_TOKENS] for request in made}

    assert workload.repeated_heads == 0
    assert len(heads) == 3_005


def test_a_pool_with_too_few_beginnings_says_how_many_are_repeated() -> None:
    constant = PromptPool(tokens=np.zeros(100, dtype=np.int64))
    workload = make_workload(rows(*[(5, 1)] * 10), constant, warmups=1, seed=0)

    assert workload.repeated_heads == 9
    assert workload.request(7).prompt == (0,) * 5


def test_one_seed_makes_one_workload_and_another_seed_another() -> None:
    def prompts(seed: int) -> list[object]:
        workload = make_workload(rows(*[(30, 1)] * 50), english(), warmups=1, seed=seed)
        return [workload.request(index).prompt for index in range(50)]

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)


@pytest.mark.parametrize(
    ("prompt", "input_tokens", "output_tokens"), [((1, 2), 3, 1), ("", 0, 1), ((1,), 1, 0)]
)
def test_a_request_whose_lengths_do_not_fit_cannot_be_made(
    prompt: str | tuple[int, ...], input_tokens: int, output_tokens: int
) -> None:
    with pytest.raises(ValueError, match="tokens"):
        Request(request_id=0, prompt=prompt, input_tokens=input_tokens, output_tokens=output_tokens)
