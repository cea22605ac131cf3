"""What comes back for one HTTP request, as its connection hands it over."""

from collections.abc import Callable
from contextvars import ContextVar

from loadgen.clients.reply_stream import ReplyStream


class ArrivingReply:
    """Passes the bytes of a successful response to `stream`, and the number of chunks in them to
    `on_chunks`.

    `ended_ns` is when the last byte arrived, None before. `touched` tells whether any byte of a
    response came, `reused` whether an earlier request had the connection.
    """

    __slots__ = ("_on_chunks", "ended_ns", "reused", "stream", "touched")

    def __init__(self, stream: ReplyStream, on_chunks: Callable[[int], None]) -> None:
        self.stream = stream
        self.ended_ns: int | None = None
        self.reused = False
        self.touched = False
        self._on_chunks = on_chunks

    @property
    def broken(self) -> bool:
        """Whether nothing that may still come can make it a complete reply."""
        return self.stream.error is not None

    def body(self, data: bytes, at_ns: int) -> None:
        """Take in bytes of the body, which arrived at `at_ns`."""
        chunks = self.stream.feed(data, at_ns)
        if chunks:
            self._on_chunks(chunks)


ARRIVING: ContextVar[ArrivingReply] = ContextVar("ARRIVING")
"""The reply that the running task waits for: aiohttp has no argument that would bring it along."""
