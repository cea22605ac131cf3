"""What a client is told that may not pass, in the shape of the API that it speaks."""

from http import HTTPStatus

import msgspec
import pytest

from serving.policy.admission.refusal import RateState, RefusalReason, Refused
from serving.server.gateway.http.http_errors import HttpError, error_of


def test_an_error_has_the_shape_of_the_api_it_is_for() -> None:
    error = HttpError(HTTPStatus.UNAUTHORIZED, "c", "m")

    assert msgspec.json.decode(error.body("/v1/models")) == {
        "error": {"message": "m", "type": "authentication_error", "param": None, "code": "c"}
    }
    assert msgspec.json.decode(error.body("/v1/messages")) == {
        "type": "error",
        "error": {"type": "authentication_error", "message": "m"},
    }
    assert error.headers() == [(b"www-authenticate", b"Bearer")]


@pytest.mark.parametrize("reason", RefusalReason)
def test_a_refusal_is_the_load_s_or_the_server_s_and_says_when_to_come_back(
    reason: RefusalReason,
) -> None:
    rate = RateState(limit_requests=2, remaining_requests=0, reset_requests_s=1.25)
    error = error_of(Refused(reason, "why", retry_after_s=1.25, rate=rate))

    assert error.status == (503 if reason.is_of_server else 429)
    assert (error.code, error.message) == (reason.value, "why")
    headers = dict(error.headers())
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1250")
    assert headers[b"x-ratelimit-reset-requests"] == b"1.25s"


def test_an_event_of_a_stream_ends_with_an_empty_line_and_is_named_for_anthropic_s_clients() -> (
    None
):
    error = HttpError(HTTPStatus.GATEWAY_TIMEOUT, "c", "m")

    assert error.event("/v1/completions") == b"data: " + error.body("/v1/completions") + b"\n\n"
    assert error.event("/v1/messages").startswith(b"event: error\ndata: {")
