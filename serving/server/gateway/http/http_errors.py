"""Errors of the HTTP gateway in the shapes of the APIs.

OpenAI's clients read `{"error": {"message", "type", "param", "code"}}`; Anthropic's, on its paths,
`{"type": "error", "error": {"type", "message"}}`. `code` is a stable word.

Sources: https://platform.openai.com/docs/guides/error-codes,
https://docs.anthropic.com/en/api/errors

Headers that OpenAI's clients read say the rest of a key's limits, and when to retry. Source:
https://platform.openai.com/docs/guides/rate-limits (durations as "1s", "6m0s");
openai-python and openai-node wait for `retry-after-ms`, else `retry-after`.
"""

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from typing import Final

from serving.policy.admission.refusal import RateState, Refused
from serving.server.gateway.http.asgi import Headers, Send, body_headers, respond


def rate_headers(rate: RateState) -> Headers:
    """Headers of the key's limits, if any."""
    headers: Headers = []
    for unit, limit, remaining, reset_s in (
        (b"requests", rate.limit_requests, rate.remaining_requests, rate.reset_requests_s),
        (b"tokens", rate.limit_tokens, rate.remaining_tokens, rate.reset_tokens_s),
    ):
        if limit is None:
            continue
        headers += (
            (b"x-ratelimit-limit-" + unit, str(limit).encode()),
            (b"x-ratelimit-remaining-" + unit, str(max(0, remaining or 0)).encode()),
            (b"x-ratelimit-reset-" + unit, duration_text(reset_s or 0.0).encode()),
        )
    return headers


def retry_headers(retry_after_s: float) -> Headers:
    """The delay in both spellings; never zero, which clients ignore."""
    wait_ms = max(1, math.ceil(retry_after_s * 1e3))
    return [
        (b"retry-after", str(-(-wait_ms // 1000)).encode()),
        (b"retry-after-ms", str(wait_ms).encode()),
    ]


def duration_text(seconds: float) -> str:
    """A duration as OpenAI writes it: 0.02 -> "20ms", 1.5 -> "1.5s", 360 -> "6m0s"."""
    milliseconds = max(0, math.ceil(seconds * 1e3 - 1e-6))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole_s, rest_ms = divmod(milliseconds, 1000)
    minutes, second = divmod(whole_s, 60)
    hours, minute = divmod(minutes, 60)
    text = f"{second}.{rest_ms:03d}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minute}m{text}"
    return f"{minute}m{text}" if minute else text


ANTHROPIC_PATHS: Final = "/v1/messages"

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_exceeded",
    500: "server_error",
    503: "service_unavailable",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error response.

    Attributes:
        retry_after_s: wall seconds until the same request may succeed; None: unknown.
        rate: rest of the client's limits, where known.
        closes: whether the connection ends, and the rest of the request with it.
        allows: the path's methods, where the request's is none of them.
    """

    status: HTTPStatus
    code: str
    message: str
    _: KW_ONLY
    param: str | None = None
    retry_after_s: float | None = None
    rate: RateState | None = None
    closes: bool = False
    allows: str | None = None

    def headers(self) -> Headers:
        """Headers beside the body's."""
        headers: Headers = []
        if self.status is HTTPStatus.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_s is not None:
            headers += retry_headers(self.retry_after_s)
        if self.rate is not None:
            headers += rate_headers(self.rate)
        if self.allows is not None:
            headers.append((b"allow", self.allows.encode("latin-1")))
        if self.closes:
            headers.append((b"connection", b"close"))
        return headers

    def body(self, path: str) -> bytes:
        """JSON in the shape of the API of `path`."""
        if path.startswith(ANTHROPIC_PATHS):
            kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            content: dict[str, object] = {
                "type": "error",
                "error": {"type": kind, "message": self.message},
            }
        else:
            content = {
                "error": {
                    "message": self.message,
                    "type": _TYPES.get(self.status, "invalid_request_error"),
                    "param": self.param,
                    "code": self.code,
                }
            }
        return json.dumps(content).encode()

    def event(self, path: str) -> bytes:
        """The error as a server-sent event, for a stream that has begun."""
        named = b"event: error\n" if path.startswith(ANTHROPIC_PATHS) else b""
        return named + b"data: " + self.body(path) + b"\n\n"


class HttpRefused(Exception):
    """A refused request; `error` is its answer."""

    def __init__(self, error: HttpError) -> None:
        super().__init__(error.message)
        self.error = error


def bad_request(code: str, message: str, *, param: str | None = None) -> HttpRefused:
    """A refusal with 400."""
    error = HttpError(HTTPStatus.BAD_REQUEST, code, message, param=param)
    return HttpRefused(error)


def error_of(refused: Refused) -> HttpError:
    """429 when it is the load, 503 when it is the server."""
    of_server = refused.reason.is_of_server
    return HttpError(
        HTTPStatus.SERVICE_UNAVAILABLE if of_server else HTTPStatus.TOO_MANY_REQUESTS,
        refused.reason.value,
        str(refused),
        retry_after_s=max(0.0, refused.retry_after_s),
        rate=refused.rate,
    )


async def answer(
    send: Send,
    error: HttpError,
    *,
    path: str,
    headers: Headers,
    before_end: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send the whole response, with `headers`.

    `before_end` is awaited when the client has all of it, the connection still open.
    """
    body = error.body(path)
    headers = [*body_headers(body), *error.headers(), *headers]
    if before_end is None:
        await respond(send, error.status, headers, body)
        return
    status = error.status.value
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await before_end()
    await send({"type": "http.response.body", "body": b""})
