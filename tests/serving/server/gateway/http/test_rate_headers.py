"""What OpenAI's clients read of limits, against what they make of it."""

import math

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.admission.refusal import RateState
from serving.server.gateway.http.http_errors import duration_text, rate_headers, retry_headers

CLIENT = openai.OpenAI(api_key="none", base_url="http://server")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0204, "21ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360.0, "6m0s"),
        (7_262.5, "2h1m2.5s"),
    ],
)
def test_a_duration_is_spelled_as_openai_spells_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_key_with_one_limit_has_the_headers_of_that_one() -> None:
    rate = RateState(limit_requests=60, remaining_requests=59, reset_requests_s=1.0)

    assert rate_headers(rate) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
    ]
    assert rate_headers(RateState()) == []


def test_tokens_have_their_own_three() -> None:
    rate = RateState(limit_tokens=1_000, remaining_tokens=0, reset_tokens_s=61.0)

    assert dict(rate_headers(rate)) == {
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"1m1s",
    }


@given(st.floats(min_value=0.0, max_value=60.0))
def test_openai_s_client_waits_at_least_as_long_as_it_is_told(wait_s: float) -> None:
    read_s = CLIENT._parse_retry_after_header(httpx.Headers(retry_headers(wait_s)))

    assert read_s is not None
    assert wait_s <= read_s <= wait_s + 0.002
    assert int(dict(retry_headers(wait_s))[b"retry-after"]) == max(1, math.ceil(read_s))
