"""Clients of one server in this process, as cheap as Python has them: bytes are counted, not read.

For benchmarks of the server: neither events nor answers are parsed. A stream is over with its last
chunk, a connection is kept for the next request.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

_END: Final = b"\r\n0\r\n\r\n"
_ENDS: Final = (_END, b"\r\n\r\nok\n", b"\r\n\r\nOK")
"""The last bytes of a stream, and of a probe's answer: ours and smg's."""

_CHUNK: Final = b"data: {"

_ERROR: Final = b'data: {"error"'
"""A stream that has begun says so by a chunk, and has status 200."""

_OTHER_CHUNKS: Final = 2
"""Of a stream besides one a token: a role before them, an end after."""


@dataclass(slots=True, kw_only=True)
class StreamCounts:
    """Of all streams: chunks, streams that ended, streams that failed, each one's first chunk."""

    chunks: int = 0
    ended: int = 0
    ended_chunks: int = 0
    """Of streams that ended."""
    failures: list[str] = field(default_factory=list)
    first_chunk_s: list[float] = field(default_factory=list)
    """Wall seconds from sending to the first chunk."""
    all_open_s: float | None = None
    """When all were open at once, by the monotonic clock."""

    @property
    def open(self) -> int:
        """Streams that have begun and not ended."""
        return len(self.first_chunk_s) - self.ended - len(self.failures)


class StreamConnection(asyncio.Protocol):
    """One connection, a request at a time."""

    def __init__(self, counts: StreamCounts) -> None:
        self._counts = counts
        self._done: asyncio.Future[bool] | None = None
        self._sent_s = 0.0
        self._status = b""
        self._chunks = 0
        self._last = b""
        self._tokens: int | None = None

    def send(self, message: bytes, tokens: int | None = None) -> "asyncio.Future[bool]":
        """Send a request; the future is done with its answer, and says whether it was one.

        A stream of `tokens` has a chunk at least, and not many more than tokens: a server that is
        late joins some.
        """
        self._tokens = tokens
        self._done = asyncio.get_running_loop().create_future()
        self._status, self._chunks, self._last = b"", 0, b""
        self._sent_s = time.monotonic()
        self._transport.write(message)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._status = data.partition(b"\r\n")[0]
        chunks = data.count(_CHUNK)
        if chunks and not self._chunks:
            self._counts.first_chunk_s.append(time.monotonic() - self._sent_s)
        self._chunks += chunks
        self._counts.chunks += chunks
        seen = self._last + data
        self._last = seen[1 - len(_ERROR) :]
        if b" 200 " not in self._status:
            self._end(self._status.decode())
        elif _ERROR in seen:
            self._end(seen[seen.index(_ERROR) :].partition(b"\n")[0].decode())
        elif self._last.endswith(_ENDS):
            self._end(self._wrong_chunks())

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"connection lost: {error}")

    def _wrong_chunks(self) -> str | None:
        if self._tokens is None or 0 < self._chunks <= self._tokens + _OTHER_CHUNKS:
            return None
        return f"{self._chunks} chunks of {self._tokens} tokens"

    def close(self) -> None:
        """Leave, whatever is under way."""
        self._done = None
        self._transport.abort()

    def _end(self, failure: str | None) -> None:
        if self._done is None or self._done.done():
            return
        if failure is None:
            self._counts.ended += 1
            self._counts.ended_chunks += self._chunks
        else:
            self._counts.failures.append(failure)
        self._done.set_result(failure is None)


def get(url: str, path: str) -> bytes:
    """The bytes of a request without a body."""
    return f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode()


def post(url: str, path: str, body: dict[str, Any], *, key: str | None = None) -> bytes:
    """The bytes of a request, with a key if any."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
    if key is not None:
        head += f"Authorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def connected(url: str, counts: StreamCounts) -> StreamConnection:
    """A connection to the server at `url`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: StreamConnection(counts), parts.hostname, parts.port
    )
    return connection
