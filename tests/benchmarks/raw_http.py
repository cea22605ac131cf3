"""The floor of streaming over HTTP: a parser (httptools) on a socket.

No timeouts, refusals or recovery: a floor for `http_clients`, no client to use.
"""

import asyncio
import time
from typing import cast
from urllib.parse import urlsplit

import httptools

from loadgen.clients.reply_stream import ReplyStream
from loadgen.clients.stamped_connection import ArrivalQueue


class RawConnection(asyncio.Protocol):
    """One kept connection, a request at a time."""

    def __init__(self, arrivals: ArrivalQueue) -> None:
        self._arrivals = arrivals
        self._parser = httptools.HttpResponseParser(self)
        self._at_ns = 0

    def begin(self, message: bytes, stream: ReplyStream) -> asyncio.Future[None]:
        """Send; the future is done when the response is complete."""
        self._stream = stream
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._arrivals.add(self, data)

    def parse(self, data: bytes, at_ns: int) -> None:
        self._at_ns = at_ns
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._stream.feed(data, self._at_ns)

    def on_message_complete(self) -> None:
        self._done.set_result(None)


class RawHttp:
    """Connections to the server at `url`, and `body` to post to it."""

    def __init__(self, url: str, body: bytes) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._message = head.encode() + body
        self._arrivals = ArrivalQueue(asyncio.get_running_loop(), time.monotonic_ns)
        self._idle: list[RawConnection] = []

    async def send(self) -> ReplyStream:
        loop = asyncio.get_running_loop()
        if self._idle:
            connection = self._idle.pop()
        else:
            _, connection = await loop.create_connection(
                lambda: RawConnection(self._arrivals), self._host, self._port
            )
        stream = ReplyStream(asked_tokens=4, keep=True)
        await connection.begin(self._message, stream)
        self._idle.append(connection)
        return stream
