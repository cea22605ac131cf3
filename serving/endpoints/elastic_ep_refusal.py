"""Refuses vLLM's `/scale_elastic_ep`, which starts and ends engines of its own; ours has one.

Here groups of chips leave and come back by the control service. The answer is an error as vLLM's
clients know it, 501 Not Implemented, with the way to go.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

PATH: Final = "/scale_elastic_ep"

_WORDS: Final = (
    "this engine is not scaled by /scale_elastic_ep: its chips leave and come back in groups, by "
    "`ultraserve drain` and `ultraserve resume`, or Drain and Resume of the control service "
    "ultraserve.v1.Control"
)


def is_refused(scope: MutableMapping[str, Any]) -> bool:
    """Whether this ASGI scope is of a request to scale the engine."""
    path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
    return scope["type"] == "http" and path.rstrip("/") == PATH


async def refuse(send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
    """Answer with the refusal."""
    status = HTTPStatus.NOT_IMPLEMENTED
    error = {
        "message": _WORDS,
        "type": "NotImplementedError",
        "param": None,
        "code": status.value,
    }
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
