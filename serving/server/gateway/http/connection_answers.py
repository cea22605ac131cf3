"""What a connection is told that reached a limit before it was a request: whole responses."""

from http import HTTPStatus
from typing import Final

from serving.server.gateway.http.http_errors import HttpError
from serving.server.gateway.ingress_limits import Limit

_TOO_LARGE: Final = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_BUSY: Final = HTTPStatus.SERVICE_UNAVAILABLE

_SAID: Final = {
    Limit.HEAD_BYTES: (_TOO_LARGE, "the request's headers are larger than this server takes"),
    Limit.HEAD_FIELDS: (_TOO_LARGE, "the request has more headers than this server takes"),
    Limit.HEAD_TIME: (HTTPStatus.REQUEST_TIMEOUT, "the request's headers did not arrive in time"),
    Limit.MALFORMED: (HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1"),
    Limit.PIPELINED_REQUESTS: (HTTPStatus.BAD_REQUEST, "too many requests were sent unanswered"),
    Limit.UPGRADE: (HTTPStatus.FORBIDDEN, "a websocket needs an API key"),
    Limit.STRANGER_BYTES: (_BUSY, "too much arrives at once from clients without a key"),
    Limit.KEY_BYTES: (HTTPStatus.TOO_MANY_REQUESTS, "too much arrives at once with this key"),
    Limit.KEY_CONNECTIONS: (
        HTTPStatus.TOO_MANY_REQUESTS,
        "as many connections are open with this key as may be",
    ),
    Limit.TOTAL_BYTES: (_BUSY, "too much arrives at once"),
}
_RETRY_AFTER_S: Final = 1.0


def error_of_limit(limit: Limit) -> HttpError:
    """What is said of it; the connection ends with it."""
    status, message = _SAID[limit]
    may_retry = status in (_BUSY, HTTPStatus.TOO_MANY_REQUESTS)
    return HttpError(
        status=status,
        code=limit.value,
        message=message,
        retry_after_s=_RETRY_AFTER_S if may_retry else None,
        closes=True,
    )


def raw_answer(limit: Limit) -> bytes:
    """The response's bytes; the connection ends with it."""
    error = error_of_limit(limit)
    status, body = error.status, error.body("")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *error.headers(),
    ]
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), head, body)
