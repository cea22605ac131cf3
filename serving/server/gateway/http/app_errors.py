"""Replaces errors of vLLM's app by ones with a status, a reason and a retry delay.

The app answers unknown paths in its framework's shape, an engine that is gone or has no rank up
with "Internal server error", and a stream that fails before its first token with 200.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from serving.server.gateway.http.http_errors import HttpError

_ERROR_EVENTS: Final = (b'data: {"error"', b"event: error")
"""Beginnings of server-sent error events, OpenAI's and Anthropic's."""

_PRELUDES: Final = (
    b'"delta":{"role":"assistant","content":""}',
    b'"type":"response.created"',
    b'"type":"response.in_progress"',
)
"""Beginnings of vLLM's streams, sent before there is a first token."""

_FRAMEWORK: Final = b'{"detail"'
"""Beginning of FastAPI's own errors."""

_RETRY_AFTER_S: Final = 1.0
"""Wall seconds after a 503 without a delay. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppAnswer:
    """The beginning of the app's response: status, headers, first of its body."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    first: bytes
    streams_events: bool

    @property
    def is_failed(self) -> bool:
        """Whether the app met an error that may not be the client's."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.is_failed_stream

    @property
    def is_prelude(self) -> bool:
        """Whether it is a stream that has only begun."""
        begins = any(prelude in self.first for prelude in _PRELUDES)
        return self.streams_events and begins and self.status == HTTPStatus.OK

    @property
    def is_failed_stream(self) -> bool:
        """Whether it is a stream that begins with an error."""
        return self.streams_events and self.first.startswith(_ERROR_EVENTS)


def routing_error(said: AppAnswer, *, method: str, path: str) -> HttpError | None:
    """The answer to a path or method that the app does not know; None elsewhere."""
    if not said.first.startswith(_FRAMEWORK):
        return None
    if said.status == HTTPStatus.NOT_FOUND:
        return HttpError(HTTPStatus.NOT_FOUND, "not_found", f"there is nothing at {path[:200]}")
    if said.status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = b", ".join(value for name, value in said.headers if name.lower() == b"allow")
        takes = allowed.decode("latin-1")
        return HttpError(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method_not_allowed",
            f"{path[:200]} does not take {method}" + (f", but {takes}" if takes else ""),
            allows=takes or None,
        )
    return None


class _ErrorBody(msgspec.Struct):
    message: str = "the server failed at this request"
    param: str | None = None
    code: msgspec.Raw = msgspec.Raw(b"500")


class _ErrorEvent(msgspec.Struct):
    error: _ErrorBody


_EVENT: Final = msgspec.json.Decoder(_ErrorEvent)


def error_of_stream(said: AppAnswer) -> HttpError | None:
    """The answer in place of a stream that begins with an error; None for others."""
    if not said.is_failed_stream:
        return None
    _, _, data = said.first.partition(b"data: ")
    try:
        error = _EVENT.decode(data.partition(b"\n")[0]).error
    except msgspec.MsgspecError:
        error = _ErrorBody()
    try:
        status = HTTPStatus(int(bytes(error.code)))
    except ValueError:  # it is another word, or no status
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    if status < HTTPStatus.BAD_REQUEST:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    name = status.phrase.lower().replace(" ", "_")
    return HttpError(
        status,
        name,
        error.message,
        param=error.param,
        retry_after_s=_RETRY_AFTER_S if status is HTTPStatus.SERVICE_UNAVAILABLE else None,
    )
