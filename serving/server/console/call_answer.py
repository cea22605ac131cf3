"""A call of the control service over HTTP: what it answers, and how it fails. Pure data.

The form is the Connect protocol's for unary calls in JSON
(https://connectrpc.com/docs/protocol#unary-request): a status of HTTP, and a body that is the
response's message, or `{"code", "message", "details"}`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

import msgspec

HTTP_STATUS: Final = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "aborted": 409,
    "out_of_range": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "data_loss": 500,
    "unauthenticated": 401,
}
"""Of Connect's codes: its table, at https://connectrpc.com/docs/protocol#error-codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """A status of HTTP, and JSON."""

    status: int
    body: bytes


def failed(
    code: str, message: str, *, details: Sequence[dict[str, Any]] = (), status: int | None = None
) -> CallAnswer:
    """How a call fails; `status` where HTTP has a more exact one than the code."""
    # What is quoted of a request may hold half characters, which JSON cannot.
    body: dict[str, Any] = {"code": code, "message": message.encode(errors="replace").decode()}
    if details:
        body["details"] = list(details)
    return CallAnswer(status=status or HTTP_STATUS[code], body=msgspec.json.encode(body))


def answered(body: bytes) -> CallAnswer:
    """What it answers."""
    return CallAnswer(status=HTTPStatus.OK, body=body)


class Calls(Protocol):
    """The unary calls of the control service, as JSON."""

    def changes(self, method: str) -> bool:
        """Whether it is a method that does more than look; False for one that there is not."""

    async def call(
        self,
        method: str,
        body: bytes,
        *,
        key: str | None,
        action: str | None = None,
        wall_s: float | None = None,
    ) -> CallAnswer:
        """Call `method` with the message in `body` and the key of whoever asks; `action` is its
        idempotency key.
        """
