"""Completions and chat, whole and streamed: what the OpenAI API promises of a text."""

import math
import os

import pytest
from conftest import MODEL
from openai import OpenAI

PROMPT = "def chip(core):\n    return"
MESSAGES = [{"role": "user", "content": "Why is the old machine so quiet?"}]
LONG = {"ignore_eos": True}


def greedy(client: OpenAI, **given):
    settings = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0.0} | given
    return client.completions.create(extra_body=LONG, **settings)


def chat(client: OpenAI, **given):
    settings = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0.0}
    return client.chat.completions.create(extra_body=LONG, **(settings | given))


def test_the_model_is_listed_and_can_be_asked_for(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.list().data[0].object == "model"


def test_a_completion_counts_its_tokens(client: OpenAI) -> None:
    answer = greedy(client, max_tokens=9)

    assert answer.object == "text_completion"
    assert answer.model == MODEL
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == 9 + answer.usage.prompt_tokens


def test_several_prompts_are_answered_in_their_order(client: OpenAI) -> None:
    prompts = [PROMPT, "The capital of the river is", "9"]
    answer = greedy(client, prompt=prompts)

    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    alone = [greedy(client, prompt=prompt).choices[0].text for prompt in prompts]
    assert [choice.text for choice in answer.choices] == alone


def test_echo_puts_the_prompt_before_the_text(client: OpenAI) -> None:
    whole = greedy(client).choices[0].text

    assert greedy(client, echo=True).choices[0].text == PROMPT + whole


def test_a_streamed_completion_is_the_same_text_and_ends_with_its_usage(client: OpenAI) -> None:
    whole = greedy(client, max_tokens=20)
    stream = greedy(client, max_tokens=20, stream=True, stream_options={"include_usage": True})
    pieces = list(stream)

    text = "".join(choice.text for piece in pieces for choice in piece.choices)
    assert text == whole.choices[0].text
    assert len(pieces) > 5
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens == 20
    assert [piece.usage for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_a_chat_has_a_role_and_its_stream_the_same_text(client: OpenAI) -> None:
    whole = chat(client)
    message = whole.choices[0].message
    with chat(client, stream=True, stream_options={"include_usage": True}) as stream:
        pieces = list(stream)

    assert message.role == "assistant"
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices)
    assert text == message.content
    # The second is found in the prefix cache, and told so.
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens
    reasons = [choice.finish_reason for piece in pieces for choice in piece.choices]
    assert [reason for reason in reasons if reason] == ["length"]


def test_the_stream_helper_gathers_the_same_message(client: OpenAI) -> None:
    given = {"model": MODEL, "messages": MESSAGES, "temperature": 0.0}
    form = {"name": "why", "strict": True, "schema": {"enum": ["because", "it waits"]}}
    given["response_format"] = {"type": "json_schema", "json_schema": form}
    with client.chat.completions.stream(**given) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()

    whole = client.chat.completions.create(**given)
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("asked", ["max_tokens", "max_completion_tokens"])
def test_a_chat_is_as_long_as_either_limit_says(client: OpenAI, asked: str) -> None:
    given = {"model": MODEL, "messages": MESSAGES, asked: 7}

    answer = client.chat.completions.create(**given, extra_body=LONG)
    assert answer.usage.completion_tokens == 7


def test_logprobs_of_a_chat_name_the_most_probable_first(client: OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=6)

    scored = answer.choices[0].logprobs.content
    assert len(scored) == 6
    for token in scored:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # temperature 0
        ranked = [each.logprob for each in token.top_logprobs]
        assert ranked == sorted(ranked, reverse=True)
        assert sum(math.exp(each) for each in ranked) <= 1.0 + 1e-6
        assert bytes(token.bytes) == token.token.encode()


def test_logprobs_of_a_completion_lie_beside_its_tokens(client: OpenAI) -> None:
    answer = greedy(client, logprobs=2, max_tokens=6)

    scored = answer.choices[0].logprobs
    assert len(scored.tokens) == len(scored.token_logprobs) == len(scored.top_logprobs) == 6
    assert "".join(scored.tokens) == answer.choices[0].text
    assert scored.text_offset[0] == 0
    assert all(value <= 0.0 for value in scored.token_logprobs)


def test_several_answers_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    def draw(seed: int) -> list[str]:
        answer = chat(client, n=3, seed=seed, temperature=1.0)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage.completion_tokens == 3 * 12
        return [choice.message.content for choice in answer.choices]

    first = draw(5)
    assert len(set(first)) == 3
    assert draw(5) == first
    assert draw(6) != first


def test_several_answers_can_be_streamed(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    for piece in chat(client, n=2, seed=5, temperature=1.0, stream=True):
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""

    whole = chat(client, n=2, seed=5, temperature=1.0)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    whole = greedy(client, max_tokens=24).choices[0].text
    stop = whole[8:10]
    (choice,) = greedy(client, max_tokens=24, stop=[stop]).choices

    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("api", ["completion", "chat"])
def test_a_biased_token_is_the_only_one(client: OpenAI, api: str) -> None:
    def text(**given) -> str:
        if api == "chat":
            return chat(client, **given).choices[0].message.content
        return greedy(client, **given).choices[0].text

    one = text(logit_bias={"77": 100}, max_tokens=1)
    four = text(logit_bias={"77": 100}, max_tokens=4)
    assert one
    assert four == 4 * one
    assert four != text(max_tokens=4)


def token_ids(client: OpenAI) -> list[int]:
    path = os.environ["TOKENIZE_PATH"]
    return client.post(path, cast_to=object, body={"model": MODEL, "prompt": PROMPT})["tokens"]


def test_a_prompt_has_as_many_tokens_as_are_counted(client: OpenAI) -> None:
    assert len(token_ids(client)) == greedy(client).usage.prompt_tokens


def test_a_tokenized_prompt_is_the_same_prompt(client: OpenAI) -> None:
    ids = token_ids(client)

    assert greedy(client, prompt=ids).choices[0].text == greedy(client).choices[0].text


def test_the_raw_response_has_a_request_id(client: OpenAI) -> None:
    given = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
    raw = client.completions.with_raw_response.create(
        **given, extra_headers={"X-Request-Id": "conformance-7"}
    )

    assert raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] == "conformance-7"
    assert raw.parse().choices[0].finish_reason == "length"
