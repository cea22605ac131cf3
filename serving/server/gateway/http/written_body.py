"""A response's body on its connection: chunks that do not go through the app's middlewares, and
chunks of one step that are written at once.
"""

import asyncio
from typing import Any, Final

from serving.server.gateway.http.asgi import Scope

WRITTEN_BODY: Final = "ultraserve.written_body"
"""The ASGI extension in which a request has it."""


class WrittenBody:
    """Of uvicorn's `cycle`, one request and its response.

    `takes_chunks` while the maker of the response may write here, behind what the app has sent.
    """

    __slots__ = ("_cycle", "_joined", "takes_chunks")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._joined: list[bytes] = []
        self.takes_chunks = False

    def is_open(self) -> bool:
        """Whether the connection takes a chunk at once."""
        cycle = self._cycle
        return (
            self.takes_chunks
            and cycle.chunked_encoding
            and not cycle.response_complete
            and not cycle.disconnected
            and not cycle.flow.write_paused
            and not cycle.transport.is_closing()
        )

    def write(self, chunk: bytes) -> None:
        """Write a chunk, behind those that were joined."""
        if self._joined:
            self.write_joined()
        self._frame(chunk)

    def join(self, chunk: bytes) -> None:
        """Write a chunk, if open, in one write with all that come in this turn of the loop."""
        if not self._joined:
            asyncio.get_running_loop().call_soon(self.write_joined)
        self._joined.append(chunk)

    def write_joined(self) -> None:
        """Write what was joined now; nothing once the client has gone."""
        chunk, self._joined = b"".join(self._joined), []
        cycle = self._cycle
        if chunk and not cycle.disconnected and not cycle.transport.is_closing():
            self._frame(chunk)

    def _frame(self, chunk: bytes) -> None:
        """Write in the framing of HTTP/1.1, in which an empty chunk is the end."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))


def written_body_of(scope: Scope) -> WrittenBody | None:
    """The written body of a request; None behind another server than ours."""
    body: WrittenBody | None = scope.get("extensions", {}).get(WRITTEN_BODY)
    return body
