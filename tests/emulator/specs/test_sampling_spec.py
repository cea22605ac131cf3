"""What a sampling spec refuses, and that it crosses processes as plain values."""

from typing import Any

import msgspec
import pytest

from emulator.errors import ConfigError
from emulator.specs.sampling import SamplingSpec

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": float("nan")}),
    ("top_k", {"top_k": -1}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.1}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.1}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": float("inf")}),
    ("presence_penalty", {"presence_penalty": 2.5}),
    ("frequency_penalty", {"frequency_penalty": -2.5}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": None, "temperature": 0.5}),
    ("min_tokens", {"min_tokens": -1}),
    ("stop_token_ids", {"stop_token_ids": (1, -1)}),
    ("logit_bias", {"logit_bias": ((1, 0.5), (1, 1.0))}),
    ("logit_bias", {"logit_bias": ((1, float("inf")),)}),
    ("logit_bias", {"logit_bias": ((-1, 0.5),)}),
    ("bad_words", {"bad_words": ((1,), ())}),
    ("bad_words", {"bad_words": ((1, -2),)}),
    ("allowed_token_ids", {"allowed_token_ids": ()}),
    ("allowed_token_ids", {"allowed_token_ids": (-3,)}),
    ("logprobs", {"logprobs": -2}),
    ("logprob_token_ids", {"logprob_token_ids": ()}),
    ("prompt_logprobs", {"prompt_logprobs": -2}),
]


@pytest.mark.parametrize(("field", "values"), REFUSED)
def test_a_value_out_of_range_is_refused_by_its_name(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        SamplingSpec(**{"seed": 1, **values})

    assert refused.value.field == field


def test_a_greedy_request_needs_no_seed() -> None:
    assert SamplingSpec(temperature=0.0).is_greedy


def test_greedy_ends_at_the_temperature_where_vllm_begins_to_draw() -> None:
    assert SamplingSpec(temperature=0.99e-5).is_greedy
    assert not SamplingSpec(temperature=1e-5, seed=1).is_greedy


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7, "seed": 3},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logprobs": 0},
        {"logprob_token_ids": (1,)},
        {"min_tokens": 1},
        {"logit_bias": ((1, 1.0),)},
        {"bad_words": ((1,),)},
        {"allowed_token_ids": (1,)},
    ],
)
def test_any_wish_beyond_the_largest_logit_is_not_plain(values: dict[str, Any]) -> None:
    assert SamplingSpec(temperature=0.0).is_plain_greedy

    assert not SamplingSpec(**{"temperature": 0.0, **values}).is_plain_greedy


def test_a_spec_comes_back_equal_from_msgpack() -> None:
    spec = SamplingSpec(
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=0.25,
        seed=2**64 - 1,
        min_tokens=2,
        stop_token_ids=(0, 2),
        logit_bias=((7, -1.5), (9, 2.0)),
        bad_words=((1, 2), (3,)),
        allowed_token_ids=(5, 6),
        logprobs=-1,
        logprob_token_ids=(1, 2),
        prompt_logprobs=0,
        uses_grammar=True,
    )

    encoded = msgspec.msgpack.encode(spec)

    assert msgspec.msgpack.decode(encoded, type=SamplingSpec) == spec
    assert msgspec.msgpack.decode(
        msgspec.msgpack.encode(SamplingSpec(temperature=0.0)), type=SamplingSpec
    ) == SamplingSpec(temperature=0.0)
