"""The result of a control call over HTTP. Pure data.

The form is the Connect protocol's for unary calls in JSON
(https://connectrpc.com/docs/protocol#unary-request): an HTTP status, and the response's message or
`{"code", "message", "details"}`.
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
"""Of Connect's codes: https://connectrpc.com/docs/protocol#error-codes."""


REPLICA_HEADER: Final = "ultraserve-replica"
"""HTTP's and gRPC's name of the replica that a call to a service of several is for."""

NO_REPLICAS: Final = "none: this is one engine, and no service of replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """An HTTP status and JSON."""

    status: int
    body: bytes


def failed(
    code: str, message: str, *, details: Sequence[dict[str, Any]] = (), status: int | None = None
) -> CallAnswer:
    """A failed call; `status` where HTTP has one more exact than the code's."""
    # What is quoted of a request may hold half characters, which JSON cannot.
    body: dict[str, Any] = {"code": code, "message": message.encode(errors="replace").decode()}
    if details:
        body["details"] = list(details)
    return CallAnswer(status=status or HTTP_STATUS[code], body=msgspec.json.encode(body))


def answered(body: bytes) -> CallAnswer:
    """A successful call."""
    return CallAnswer(status=HTTPStatus.OK, body=body)


class Calls(Protocol):
    """The control service's unary calls, as JSON."""

    def changes(self, method: str) -> bool:
        """Whether the method is known and does more than read."""

    async def call(
        self,
        method: str,
        body: bytes,
        *,
        key: str | None,
        action: str | None = None,
        replica: str | None = None,
        wall_s: float | None = None,
    ) -> CallAnswer:
        """Call `method` with the JSON `body`; `action` is its idempotency key, `replica` names one
        of a service's.
        """
