"""HTTP/1 requests written by hand, including invalid ones."""

import contextlib
import json
from typing import Any, Final

from tests.attacks.attacker import Attacker
from tests.attacks.target import Target

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
BODY_BYTES: Final = 16 * 2**20
"""The server's default limit of a body."""


def head(method: str, path: str, *lines: str, key: str = "") -> bytes:
    """A whole request head; `key` adds its header."""
    shown = [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: a", *shown, *lines, "", "")).encode()


def post(target: Target, path: str, asked: dict[str, Any] | bytes, *lines: str) -> bytes:
    body = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    size = f"content-length: {len(body)}"
    kind = "content-type: application/json"
    return head("POST", path, size, kind, *lines, key=target.key) + body


def completion(target: Target, **given: Any) -> dict[str, Any]:
    """The body of a small completion, changed as `given`."""
    return {"model": target.model, "prompt": [1, 2, 3], "max_tokens": 4} | given


async def ask(attacker: Attacker, request: bytes, *, wait_s: float = 30.0) -> int | None:
    """Send one request on its own connection, and await the answer."""
    wire = await attacker.connect(attacker.target.http_port)
    with contextlib.suppress(OSError):  # an answer may lie there
        await wire.send(request)
    status = await wire.answer(wait_s=wait_s)
    wire.close()
    return status
