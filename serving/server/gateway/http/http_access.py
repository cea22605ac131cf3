"""The client of a request of HTTP, and the paths that need none.

A key comes as `Authorization: Bearer KEY`, as OpenAI's clients send it, or as `x-api-key: KEY`, as
Anthropic's do. With keys everything but probes needs one: metrics and the API's description too
tell what runs here, and Prometheus can send one (`authorization` in its scrape configuration).
"""

from http import HTTPStatus
from typing import Final

from serving.access.key_ring import KeyRing
from serving.access.secret import HEADERS, request_credential
from serving.policy.admission.work import Client
from serving.server.gateway.http.asgi import Scope, path_of
from serving.server.gateway.http.http_errors import HttpError, HttpRefused

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/startupz", "/health", "/ping", "/version"})
"""What asks whether a server is there, and which. None of them says more than that, or changes
anything."""

_NO_KEY: Final = HttpError(
    status=HTTPStatus.UNAUTHORIZED,
    code="missing_api_key",
    message="no API key: send `Authorization: Bearer KEY`",
)
_UNKNOWN_KEY: Final = HttpError(
    status=HTTPStatus.UNAUTHORIZED,
    code="invalid_api_key",
    message="this API key is not one of this server's, or has expired",
)
_OTHER_SCOPE: Final = HttpError(
    status=HTTPStatus.FORBIDDEN,
    code="insufficient_scope",
    message="this key is for the control service and has no scope `inference`",
)


def is_open(scope: Scope, path: str) -> bool:
    """Whether it asks for something that needs no key anywhere; the body of such a request is not
    read.
    """
    return path in OPEN_PATHS or scope.get("method") == "OPTIONS"


def key_of(keys: KeyRing, scope: Scope) -> str | None:
    """The name of the client whose key a request shows; None for one without, and one that needs
    none.
    """
    path = path_of(scope)
    if is_open(scope, path):
        return None
    try:
        return client_of(keys, scope, path).name
    except HttpRefused:
        return None


def client_of(keys: KeyRing, scope: Scope, path: str) -> Client:
    """Whose request it is; anonymous where no key is needed.

    Raises HttpRefused.
    """
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
    """The key that the request shows; None when it shows none."""
    names = {name.encode(): name for name in HEADERS}
    return request_credential(
        (names[key], bytes(value).decode("latin-1"))
        for key, value in scope["headers"]
        if key in names
    )
