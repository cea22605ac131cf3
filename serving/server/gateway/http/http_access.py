"""The client of an HTTP request, and the paths that need none.

With keys all but probes need one: metrics and the API's description also tell what runs here.
Prometheus can send one (`authorization` in its scrape configuration).
"""

from http import HTTPStatus
from typing import Final

from serving.access.key_ring import KeyRing
from serving.access.secret import HEADERS, request_credential
from serving.policy.admission.work import Client
from serving.server.gateway.http.asgi import Scope, path_of
from serving.server.gateway.http.http_errors import HttpError, HttpRefused

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/startupz", "/health", "/ping", "/version"})
"""Probes and the version, which say no more and change nothing."""

_NO_KEY: Final = HttpError(
    HTTPStatus.UNAUTHORIZED, "missing_api_key", "no API key: send `Authorization: Bearer KEY`"
)
_UNKNOWN_KEY: Final = HttpError(
    HTTPStatus.UNAUTHORIZED,
    "invalid_api_key",
    "this API key is not one of this server's, or has expired",
)
_OTHER_SCOPE: Final = HttpError(
    HTTPStatus.FORBIDDEN,
    "insufficient_scope",
    "this key is for the control service and has no scope `inference`",
)


def is_open(scope: Scope, path: str) -> bool:
    """Whether it needs no key anywhere; its body is not read."""
    return path in OPEN_PATHS or scope.get("method") == "OPTIONS"


def key_of(keys: KeyRing, scope: Scope) -> str | None:
    """Name of the client whose key the request shows; None without, or where none is needed."""
    path = path_of(scope)
    if is_open(scope, path):
        return None
    try:
        return client_of(keys, scope, path).name
    except HttpRefused:
        return None


def client_of(keys: KeyRing, scope: Scope, path: str) -> Client:
    """The request's client, anonymous where no key is needed; raises HttpRefused."""
    if keys.is_open or is_open(scope, path):
        return Client()
    secret = _secret_of(scope)
    client = keys.client_of(secret)
    if client is not None:
        return client
    if secret is None:
        raise HttpRefused(_NO_KEY)
    if keys.admits_control(secret):
        raise HttpRefused(_OTHER_SCOPE)
    raise HttpRefused(_UNKNOWN_KEY)


def _secret_of(scope: Scope) -> str | None:
    names = {name.encode(): name for name in HEADERS}
    return request_credential(
        (names[key], bytes(value).decode("latin-1"))
        for key, value in scope["headers"]
        if key in names
    )
