"""Errors for requests that vLLM's app would answer wrongly, and for connections at a limit.

- An unreadable request is 400, where the framework's 500 would have clients retry. The place in the
  code is logged.
- An API that the served model lacks is 404, where vLLM's 501 means a broken server.
- A connection at a limit before it is a request gets one whole response.
"""

import logging
import traceback
from collections.abc import Collection
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from serving.server.gateway.http.asgi import body_headers
from serving.server.gateway.http.http_errors import HttpError
from serving.server.gateway.ingress_limits import Limit

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the server's process shows

STUMBLES: Final = (AssertionError, AttributeError, LookupError, RecursionError, UnicodeError)
"""Raised by reading a request of a strange shape; vLLM answers other errors itself."""


def stumbled(error: Exception, path: str) -> HttpError:
    """The answer where reading a request failed with `error`, which is logged."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"
    logger.warning("a request to %s could not be read: %s at %s", path, type(error).__name__, place)
    return HttpError(
        HTTPStatus.BAD_REQUEST, "malformed_request", "the request has a shape that cannot be read"
    )


_DECISIONS: Final = "/v1/systemone"


def missing_paths(state: Any) -> frozenset[str]:
    """Paths that an app with this state cannot answer."""
    has_decisions = getattr(state, "serving_structured_decisions", None) is not None
    return frozenset() if has_decisions else frozenset({_DECISIONS})


def missing_api(path: str, missing: Collection[str]) -> HttpError | None:
    """The answer to a request for one of `missing`; None for another path."""
    if path not in missing:
        return None
    return HttpError(HTTPStatus.NOT_FOUND, "not_found", f"the served model does not support {path}")


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
    """The error of a connection that ends at `limit`."""
    status, message = _SAID[limit]
    may_retry = status in (_BUSY, HTTPStatus.TOO_MANY_REQUESTS)
    return HttpError(
        status,
        limit.value,
        message,
        retry_after_s=_RETRY_AFTER_S if may_retry else None,
        closes=True,
    )


def raw_answer(limit: Limit) -> bytes:
    """The response's bytes, with which the connection ends."""
    error = error_of_limit(limit)
    status, body = error.status, error.body("")
    headers = (*body_headers(body), *error.headers())
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), head, body)
