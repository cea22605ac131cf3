"""Types of ASGI (https://asgi.readthedocs.io/en/latest/specs/www.html)."""

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]
"""Lower-case names."""

NO_STORE: Final = (b"cache-control", b"no-store")


def body_headers(body: bytes, kind: bytes = b"application/json") -> Headers:
    """Headers of a body that is sent whole."""
    return [(b"content-type", kind), (b"content-length", str(len(body)).encode())]


async def respond(send: Send, status: HTTPStatus, headers: Headers, body: bytes) -> None:
    """Send a whole response."""
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def header(scope: Scope, name: bytes) -> str | None:
    """The request's first header of this lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def path_of(scope: Scope) -> str:
    """The path below the app's root, without a slash at its end."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    if root and path.startswith(root):
        path = path[len(root) :]
    return path.rstrip("/") or "/"
