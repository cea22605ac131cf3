"""Reads a request's whole body, within its limits, before anything runs.

So does vLLM's app; a slow or endless sender never reaches it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any, Final, Self

from serving.server.gateway.http.asgi import Receive, Scope, header
from serving.server.gateway.http.http_errors import HttpError, HttpRefused
from serving.server.gateway.http.http_refusals import error_of_limit
from serving.server.gateway.ingress_account import Holding, IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits, Limit

LINGER_S: Final = IngressLimits().linger_s

LARGE_BYTES: Final = 2**20
"""Such a body counts until its answer begins, a smaller one until it was read: the app keeps what
it makes of it, and an honest client has few. Assumed."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def let_go(receive: Receive, wait_s: float = LINGER_S) -> None:
    """Discard the rest of a body, until its end or for `wait_s`.

    Closing earlier resets the connection, and many a client then never reads its answer.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


class HeldBody:
    """A body, counted in the account until `let_go` or the end of its block."""

    __slots__ = ("_account", "_content", "_holding")

    def __init__(self, content: bytes, account: IngressAccount, holding: Holding) -> None:
        self._content = content
        self._account = account
        self._holding = holding
        if len(content) < LARGE_BYTES:
            self.let_go()

    def take(self) -> bytes:
        """The only copy; it is still counted."""
        content, self._content = self._content, b""
        return content

    def let_go(self) -> None:
        """Count it no more; idempotent."""
        self._account.leave(self._holding)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()


class BodyReader:
    """Reads the bodies of all requests with a key; `account` counts them."""

    def __init__(self, *, bytes_max: int, account: IngressAccount) -> None:
        self.bytes_max = bytes_max
        self.account = account

    async def read(self, scope: Scope, receive: Receive, *, key: str) -> HeldBody:
        """The body sent with `key`.

        Raises HttpRefused (413, 408, 429 or 503) for a body not read to its end, and ClientGone.
        """
        self._refuse_said_length(scope, self.bytes_max)
        holding = self.account.open(key)
        try:
            return HeldBody(await self._read(receive, holding), self.account, holding)
        except BaseException:
            self.account.leave(holding)
            raise

    async def parts(
        self, scope: Scope, receive: Receive, *, key: str, bytes_max: int
    ) -> AsyncGenerator[bytes, None]:
        """The parts of a long body as they come, one of them held at a time; raises as `read`."""
        self._refuse_said_length(scope, bytes_max)
        holding = self.account.open(key)
        began_s, received_bytes, more = asyncio.get_running_loop().time(), 0, True
        try:
            while more:
                part, more = await self._next(
                    receive, holding, began_s, received_bytes, bytes_max=bytes_max
                )
                received_bytes += len(part)
                yield part
                self.account.release(holding, len(part))
        finally:
            self.account.leave(holding)

    async def _read(self, receive: Receive, holding: Holding) -> bytes:
        began_s = asyncio.get_running_loop().time()
        body = bytearray()  # one piece that grows: thousands of them would leave holes behind
        try:
            while True:
                part, more = await self._next(
                    receive, holding, began_s, len(body), bytes_max=self.bytes_max
                )
                if not more and not body:
                    return part
                body += part
                if not more:
                    return bytes(body)
        finally:
            body.clear()  # an exception keeps this frame until its client was answered

    async def _next(
        self,
        receive: Receive,
        holding: Holding,
        began_s: float,
        before_bytes: int,
        *,
        bytes_max: int,
    ) -> tuple[bytes, bool]:
        until_s = began_s + self.account.limits.time_s(before_bytes)
        message = await self._within(until_s - asyncio.get_running_loop().time(), receive)
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = bytes(message.get("body", b""))
        _refuse_size(before_bytes + len(part), bytes_max)
        limit = self.account.hold(holding, len(part))
        if limit is not None:
            raise HttpRefused(error_of_limit(limit))
        return part, bool(message.get("more_body", False))

    async def _within(self, wait_s: float, receive: Receive) -> dict[str, Any]:
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return dict(await receive())
        except TimeoutError:
            self.account.refuse(Limit.BODY_TIME)
            raise HttpRefused(_TOO_SLOW) from None

    @staticmethod
    def _refuse_said_length(scope: Scope, bytes_max: int) -> None:
        said = header(scope, b"content-length")
        if said is not None and said.isdecimal():
            _refuse_size(int(said[:20]), bytes_max)


def _refuse_size(size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise HttpRefused(
            HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "request_too_large",
                f"the request's body is larger than {bytes_max} bytes",
                closes=True,
            )
        )


_TOO_SLOW: Final = HttpError(
    HTTPStatus.REQUEST_TIMEOUT,
    "request_timeout",
    "the request's body did not arrive in time",
    closes=True,
)
