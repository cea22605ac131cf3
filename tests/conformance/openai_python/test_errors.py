"""What a client is told when it may not, asks for too much, or comes too often."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from conftest import MODEL
from openai import OpenAI

CONTEXT_TOKENS = int(os.environ["CONTEXT_TOKENS"])
BODY_BYTES_MAX = int(os.environ["BODY_BYTES_MAX"])
CONCURRENT_OF_ONE = os.environ["SINGLE_API_KEY"]
RETRIES = 60  # a client is told how long requests stay as a rule; one may stay many times that


def ask(client: OpenAI, **given):
    settings = {"model": MODEL, "prompt": "The capital of the river is", "max_tokens": 4}
    return client.completions.create(**(settings | given))


@pytest.mark.parametrize("key", ["wrong", "us-" + "0" * 43])
def test_an_unknown_key_is_an_authentication_error(client: OpenAI, key: str) -> None:
    with pytest.raises(openai.AuthenticationError) as told:
        ask(client.with_options(api_key=key))

    assert told.value.status_code == 401
    assert key not in str(told.value)


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-unknown"):
        ask(client, model="gpt-unknown")


def test_a_prompt_longer_than_the_context_is_told_the_limit(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT_TOKENS)):
        ask(client, prompt="7" * (CONTEXT_TOKENS + 1))


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", -1.0), ("top_p", 2.0), ("n", 0), ("max_tokens", 0)]
)
def test_a_parameter_that_cannot_be_is_named(client: OpenAI, field: str, value: float) -> None:
    with pytest.raises(openai.BadRequestError, match=field):
        ask(client, **{field: value})


def test_a_body_beyond_the_limit_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as told:
        ask(client, prompt="a" * (BODY_BYTES_MAX + 1))

    assert told.value.status_code == 413


def test_what_is_not_offered_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="text")


def test_an_error_has_openai_s_body(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as told:
        ask(client, model="gpt-unknown")

    assert {"message", "type", "param", "code"} <= told.value.body.keys()


def test_one_request_too_many_is_a_rate_limit_with_the_time_to_wait(client: OpenAI) -> None:
    limited = client.with_options(api_key=os.environ["LIMITED_API_KEY"])
    seen: list[int] = []

    def ask_on() -> None:
        for _ in range(1_000):
            asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
            raw = limited.completions.with_raw_response.create(**asked)
            seen.append(int(raw.headers["x-ratelimit-remaining-requests"]))

    with pytest.raises(openai.RateLimitError) as told:
        ask_on()

    headers = told.value.response.headers
    assert told.value.status_code == 429
    assert int(headers["retry-after"]) >= 1
    assert int(headers["x-ratelimit-limit-requests"]) == int(os.environ["REQUESTS_PER_MINUTE"])
    assert int(headers["x-ratelimit-remaining-requests"]) == 0
    assert seen[0] > seen[-1]


def test_a_client_that_waits_as_told_is_served_in_the_end(client: OpenAI) -> None:
    single = client.with_options(api_key=CONCURRENT_OF_ONE, max_retries=0)
    with single.completions.create(
        model=MODEL, prompt="a", max_tokens=40, stream=True, extra_body={"ignore_eos": True}
    ) as first:
        next(iter(first))
        with pytest.raises(openai.RateLimitError) as told:
            ask(single)
        with ThreadPoolExecutor(1) as pool:
            started_s = time.monotonic()
            patient = pool.submit(ask, single.with_options(max_retries=RETRIES))
            for _ in first:
                pass
            assert patient.result(timeout=60).choices[0].text
    waited_s = time.monotonic() - started_s
    assert waited_s >= 0.9 * int(told.value.response.headers["retry-after-ms"]) / 1e3
