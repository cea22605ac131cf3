"""Reads a request's body whole, within its limits: what HTTP's door knows before anything runs.

vLLM's app reads it whole as well, so nothing is lost by that, and a slow or endless sender never
reaches it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from serving.front_door.http.asgi import Receive, Scope, header
from serving.front_door.http.http_errors import HttpError, HttpRefused

WAIT_S: Final = 20.0
"""Wall seconds that a body has, and one more for each BYTES_PER_S_MIN of it that has come. As
Apache's mod_reqtimeout has it (body=20,MinRate=500), with a rate of our century; assumed: no client
that means well is slower."""

BYTES_PER_S_MIN: Final = 64 * 1024

LINGER_S: Final = 2.0
"""Wall seconds that a client has to stop sending once it was answered; assumed: it reads while it
sends, or sends what fits into two seconds."""

HELD_BODIES: Final = 64
"""Bodies of the largest size that may be on their way at once; what they hold is memory."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def let_go(receive: Receive, wait_s: float = LINGER_S) -> None:
    """Throw away what of a body still comes, until its end or for `wait_s`.

    A connection that is closed while its client still sends is reset, and many a client then never
    reads the answer that it was sent before.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


class BodyReader:
    """Reads the bodies of all requests of a server; `held_bytes` are those that are not complete.

    At most HELD_BODIES times `bytes_max` are held at once.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        wait_s: float = WAIT_S,
        bytes_per_s_min: float = BYTES_PER_S_MIN,
    ) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._wait_s = wait_s
        self._bytes_per_s_min = bytes_per_s_min

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body.

        Raises:
            HttpRefused: 413, 408 or 503; not read to its end.
            ClientGone: before the end of the body.
        """
        self._refuse_said_length(scope)
        message = await self._within(self._wait_s, receive)
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            body = bytes(message.get("body", b""))
            self._refuse_size(len(body))
            return body
        return await self._read_on(bytes(message.get("body", b"")), receive)

    async def _read_on(self, first: bytes, receive: Receive) -> bytes:
        parts = [first]
        read_bytes = 0
        clock: Callable[[], float] = asyncio.get_running_loop().time
        began_s = clock()
        self.held_bytes += len(first)
        try:
            while True:
                read_bytes += len(parts[-1])
                self._refuse_size(read_bytes)
                if self.held_bytes > HELD_BODIES * self.bytes_max:
                    raise HttpRefused(_NO_ROOM)
                until_s = began_s + self._wait_s + read_bytes / self._bytes_per_s_min
                message = await self._within(until_s - clock(), receive)
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(bytes(message.get("body", b"")))
                self.held_bytes += len(parts[-1])
                if not message.get("more_body", False):
                    self._refuse_size(read_bytes + len(parts[-1]))
                    return b"".join(parts)
        finally:
            self.held_bytes -= sum(map(len, parts))

    async def _within(self, wait_s: float, receive: Receive) -> dict[str, Any]:
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                return dict(await receive())
        except TimeoutError:
            raise HttpRefused(_TOO_SLOW) from None

    def _refuse_said_length(self, scope: Scope) -> None:
        said = header(scope, b"content-length")
        if said is not None and said.isdecimal():
            self._refuse_size(int(said[:20]))

    def _refuse_size(self, size_bytes: int) -> None:
        if size_bytes > self.bytes_max:
            raise HttpRefused(
                HttpError(
                    status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    code="request_too_large",
                    message=f"the request's body is larger than {self.bytes_max} bytes",
                    closes=True,
                )
            )


_TOO_SLOW: Final = HttpError(
    status=HTTPStatus.REQUEST_TIMEOUT,
    code="request_timeout",
    message="the request's body did not arrive in time",
    closes=True,
)
_NO_ROOM: Final = HttpError(
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    code="bodies",
    message="too many large requests arrive at once",
    retry_after_s=1.0,
    closes=True,
)
