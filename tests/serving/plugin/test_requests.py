"""Every sampling parameter of vLLM's is translated, refused by name, or vLLM's own business."""

from typing import Any

import msgspec
import pytest
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from emulator.specs.sampling import SamplingSpec
from serving.plugin.requests import refuse_request, sampling_spec

EOS_ID = 2


def params(**given: Any) -> SamplingParams:
    made = SamplingParams(**({"temperature": 0.0} | given))
    made.update_from_generation_config({"eos_token_id": [EOS_ID, 0]}, EOS_ID)
    return made


def spec(**given: Any) -> SamplingSpec:
    return sampling_spec(params(**given), "request", 5)


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"temperature": 0.7}, "temperature", 0.7),
        ({"temperature": 1.0, "top_k": 5}, "top_k", 5),
        ({"temperature": 1.0, "top_k": -1}, "top_k", 0),
        ({"temperature": 1.0, "top_k": 0}, "top_k", 0),
        ({"temperature": 1.0, "top_p": 0.5}, "top_p", 0.5),
        ({"temperature": 1.0, "min_p": 0.25}, "min_p", 0.25),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"presence_penalty": -1.0}, "presence_penalty", -1.0),
        ({"frequency_penalty": 2.0}, "frequency_penalty", 2.0),
        ({"logit_bias": {9: 1.5, 4: -2.0}}, "logit_bias", ((4, -2.0), (9, 1.5))),
        ({"seed": 99}, "seed", 99),
        ({"seed": -3}, "seed", -3),
        ({"min_tokens": 4}, "min_tokens", 4),
        ({"stop_token_ids": [7, 5]}, "stop_token_ids", (0, 2, 5, 7)),
        ({"ignore_eos": True}, "stop_token_ids", (0, 2)),
        ({"allowed_token_ids": [8, 3]}, "allowed_token_ids", (8, 3)),
        ({}, "allowed_token_ids", None),
        ({"logprobs": 3}, "logprobs", 3),
        ({"logprobs": 0}, "logprobs", 0),
        ({"logprobs": -1}, "logprobs", -1),
        ({}, "logprobs", None),
        ({"prompt_logprobs": 2}, "prompt_logprobs", 2),
        ({}, "prompt_logprobs", None),
        ({"logprob_token_ids": [4, 9]}, "logprob_token_ids", (4, 9)),
        ({}, "logprob_token_ids", None),
        ({}, "uses_grammar", False),
        (
            {"structured_outputs": StructuredOutputsParams(regex="a+")},
            "uses_grammar",
            True,
        ),
    ],
)
def test_a_parameter_arrives_at_the_chip(
    given: dict[str, Any], field: str, expected: object
) -> None:
    assert getattr(spec(**given), field) == expected


def test_bad_words_arrive_as_the_token_sequences_that_vllm_made_of_them() -> None:
    given = params(bad_words=["one", "two"])
    given._bad_words_token_ids = [[5], [6, 7]]

    assert sampling_spec(given, "request", 0).bad_words == ((5,), (6, 7))


def test_a_request_that_asks_for_nothing_special_costs_nothing_special() -> None:
    assert spec().is_plain_greedy
    assert not spec(logprobs=0).is_plain_greedy


def test_a_request_without_a_seed_gets_its_own_which_the_engine_s_seed_decides() -> None:
    seeds = {
        (name, engine): sampling_spec(params(temperature=1.0), name, engine).seed
        for name in ("a", "b")
        for engine in (0, 1)
    }

    assert len(set(seeds.values())) == 4
    assert sampling_spec(params(temperature=1.0), "a", 0).seed == seeds["a", 0]
    assert sampling_spec(params(temperature=1.0, seed=7), "a", 0).seed == 7
    assert sampling_spec(params(temperature=1.0, seed=0), "a", 0).seed == 0


REFUSED = {
    "prompt_logprob_token_ids": [[3], [4]],
    "prompt_logprob_start": 1,
    "thinking_token_budget": 10,
    "trace_decode_token_ids": [3, 4],
    "watermarking": True,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name: str) -> None:
    given = params()
    setattr(given, name, REFUSED[name])

    with pytest.raises(ValueError, match=rf"^{name}: not computed on this platform"):
        refuse_request(given)


def test_requests_other_than_text_generation_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^PoolingParams: only text generation is computed here$"):
        refuse_request(PoolingParams())


def test_a_request_that_uses_all_that_is_computed_is_not_refused() -> None:
    refuse_request(params())
    refuse_request(
        params(
            temperature=0.5,
            top_k=5,
            min_tokens=2,
            logprobs=3,
            prompt_logprobs=1,
            logit_bias={3: 1.0},
            allowed_token_ids=[3, 4],
            structured_outputs=StructuredOutputsParams(regex="a+"),
            watermarking=False,
        )
    )


# What vLLM does with the tokens before they reach the chips or after they have left them.
VLLM_S_OWN = {
    "n",
    "stop",
    "ignore_eos",
    "max_tokens",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "output_kind",
    "stream_interval",
    "skip_clone",
    "output_text_buffer_length",
    "_eos_token_id",
    "_watermarking_skipped",
    "extra_args",
    "skip_reading_prefix_cache",
    "repetition_detection",
    "routed_experts_prompt_start",
}
TRANSLATED = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "stop_token_ids",
    "_all_stop_token_ids",
    "bad_words",
    "_bad_words_token_ids",
    "allowed_token_ids",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "structured_outputs",
}


def test_no_parameter_of_vllm_s_is_dropped_without_a_word() -> None:
    known = VLLM_S_OWN | TRANSLATED | REFUSED.keys()

    assert {field.name for field in msgspec.structs.fields(SamplingParams)} == known
