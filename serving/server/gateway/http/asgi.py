"""The words of ASGI, as types: what a server and an app say to each other about one connection.

Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]
"""Lower-case names."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this lower-case name in the request, None where there is none."""
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
