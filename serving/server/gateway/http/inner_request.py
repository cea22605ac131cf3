"""A request that the server itself makes for a client, such as one of a batch.

It passes admission and the app like a client's, without a connection.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from serving.policy.admission.entry import Outcome, Stage
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client
from serving.server.gateway.admission_controller import Permit
from serving.server.gateway.http.asgi import Message, Scope
from serving.server.gateway.http.http_errors import HttpRefused

_AGAIN_S: Final = 1.0
"""Wall seconds until work that the server cut off is tried again. Assumed."""

_OF_LOAD: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""Statuses of the load or the server's state, and not of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerAnswer:
    """The whole response; `retry_after_s` (wall) where the request did not run to an end, and
    is to be made again.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None


class InnerRequest:
    """One POST of JSON to `path` for `client`; `app` is the framework's, for its handlers.

    `permit` is set once it has entered.
    """

    def __init__(
        self, app: Any, path: str, body: bytes, *, client: Client, request_id: str
    ) -> None:
        self.path = path
        self.body = body
        self.client = client
        self.permit: Permit | None = None
        self._status: int | None = None
        self._parts: list[bytes] = []
        self._complete = False
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
            ],
            "client": None,
            "server": None,
            "app": app,
            "state": {},
        }

    @property
    def waits(self) -> bool:
        """Whether the engine has nothing of it yet."""
        return self.permit is None or self.permit.entry.stage is Stage.QUEUED

    @property
    def arrived(self) -> int:
        """Its sequences that the engine has had."""
        if self.permit is None or not self.permit.entry.counted_tokens:
            return 0
        return self.permit.entry.declared_sequences

    @property
    def is_at_engine(self) -> bool:
        """Whether the engine has it, without a token."""
        return self.permit is not None and self.permit.entry.stage is Stage.WAITING

    async def receive(self) -> Message:
        """Its client never goes: it ends as its task is cancelled."""
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        """Keep a part of the response."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._parts.append(bytes(message.get("body", b"")))
        self._complete = not message.get("more_body", False)

    def answer(self) -> InnerAnswer:
        """The response, once the gateway is through with it."""
        permit, status = self.permit, self._status
        if permit is not None and permit.refusal is not None:
            return refused_answer(permit.refusal)
        if status is None or not self._complete or status in _OF_LOAD or self._is_cut(status):
            return InnerAnswer(
                status=HTTPStatus.SERVICE_UNAVAILABLE, body=b"", retry_after_s=_AGAIN_S
            )
        return InnerAnswer(status=status, body=b"".join(self._parts))

    def _is_cut(self, status: int) -> bool:
        """Whether the engine cut it off, which the app may take for an answer."""
        outcome = None if self.permit is None else self.permit.outcome
        is_answer = status < HTTPStatus.BAD_REQUEST
        return outcome is Outcome.ABORTED or (is_answer and outcome is not Outcome.FINISHED)

    def error_answer(self, refused: HttpRefused) -> InnerAnswer:
        """The response to a request that the gateway refuses for what it is."""
        error = refused.error
        return InnerAnswer(
            status=error.status, body=error.body(self.path), retry_after_s=error.retry_after_s
        )


def refused_answer(refused: Refused) -> InnerAnswer:
    """The response to a request that the load or the server's state refuses."""
    return InnerAnswer(
        status=HTTPStatus.TOO_MANY_REQUESTS, body=b"", retry_after_s=refused.retry_after_s
    )
