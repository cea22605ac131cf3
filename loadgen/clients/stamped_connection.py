"""aiohttp connections that stamp each byte's arrival.

A stamp after `await content.readany()` is late by HTTP parsing and the task's wake-up, in a burst
by those of every connection before it. Here bytes are stamped in the event loop's call and parsed
after the burst. The body goes straight to the reply: a request's task wakes for
the head and the end, not for every token.

Beyond aiohttp's documented interface: a connector makes its protocols by `_factory`; these are
`ResponseHandler`s, which get bytes by `data_received` and queue a message's head with its payload
by `feed_data`; `_reading_paused` tells whether a full buffer holds the socket. Pinned by
tests/loadgen/clients/test_stamped_connection.py.

`ArrivalQueue` stamps first and parses later: an engine step sends a token to every request at once;
parsed on the spot, the last would seem late. A read is queued until the event loop has gone round
once without another.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from loadgen.clients.reply_stream import ReplyStream

# Reads that wait at most: about 1.5 ms of parsing, at 1.5 us each. It is reached when more comes
# than can be kept up with, and is then part of the loop's lag, which a run reports.
WAITING_MAX: Final = 1_024


class StreamParser(Protocol):
    """Parses bytes of a stream as they arrive."""

    def parse(self, data: bytes, at_ns: int) -> None:
        """Parse bytes that arrived at `at_ns`; must not raise."""
        ...


class ArrivalQueue:
    """Stamped, unparsed bytes of all connections of a client."""

    __slots__ = ("_loop", "_now_ns", "_seen", "_turning", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._waiting: list[tuple[StreamParser, bytes, int]] = []
        self._seen = 0
        self._turning = False

    def add(self, parser: StreamParser, data: bytes) -> None:
        """Stamp `data` and schedule its parsing."""
        self._waiting.append((parser, data, self._now_ns()))
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def drain(self) -> None:
        """Parse all bytes now, in order; for a closing connection."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for parser, data, at_ns in waiting:
                parser.parse(data, at_ns)

    def _turn(self) -> None:
        waiting = len(self._waiting)
        if self._seen < waiting < WAITING_MAX:
            self._seen = waiting
            self._loop.call_soon(self._turn)
            return
        self._turning = False
        self._seen = 0
        self.drain()


class ArrivingReply:
    """Passes a successful response's bytes to `stream`, and its number of chunks to `on_chunks`.

    `ended_ns` is the last byte's arrival, None before. `touched`: a byte of a response came;
    `reused`: an earlier request had the connection.
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
        """Whether the reply can no longer become complete."""
        return self.stream.error is not None

    def body(self, data: bytes, at_ns: int) -> None:
        """Take in bytes of the body that arrived at `at_ns`."""
        chunks = self.stream.feed(data, at_ns)
        if chunks:
            self._on_chunks(chunks)


ARRIVING: ContextVar[ArrivingReply] = ContextVar("ARRIVING")
"""The running task's reply: aiohttp has no argument to pass it along."""


class StampedHandler(ResponseHandler):
    """A connection; bytes belong to the reply last given to `begin`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrivals: ArrivalQueue) -> None:
        super().__init__(loop=loop)
        self._arrivals = arrivals
        self._content: aiohttp.StreamReader | None = None
        self._reply: ArrivingReply | None = None
        self._used = False

    def begin(self, reply: ArrivingReply) -> None:
        """A request has gone out; the next bytes belong to `reply`."""
        reply.reused, self._used = self._used, True
        self._content = None
        self._reply = reply

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol; aiohttp also calls it without bytes, to resume after a pause."""
        if data:
            self._arrivals.add(self, data)
        else:
            super().data_received(data)

    def parse(self, data: bytes, at_ns: int) -> None:
        """Parse bytes that arrived at `at_ns`, and pass on the body."""
        super().data_received(data)
        reply = self._reply
        if reply is None:
            return
        reply.touched = True
        content = self._content
        if content is None or content.exception() is not None:
            return
        body = content.read_nowait()
        if body:
            reply.body(body, at_ns)
        if content.is_eof():
            reply.ended_ns = at_ns
            self._reply = self._content = None
        elif reply.broken:
            self._give_up(content)

    def _give_up(self, content: aiohttp.StreamReader) -> None:
        """Stop a possibly endless reply; aiohttp then closes the connection."""
        self._reply = self._content = None
        content.set_exception(aiohttp.ClientPayloadError("given up"))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Queue a head and its payload, for the parser; a refusal's body is not passed on."""
        message, content = data
        if message.code == 200:
            self._content = content
        super().feed_data(data, size)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Called after every read of a body, when aiohttp would parse again needlessly."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        self._arrivals.drain()
        super().connection_lost(exc)


class StampedResponse(aiohttp.ClientResponse):
    """A response that gives its connection the reply of the running task."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """See aiohttp."""
        protocol = connection.protocol
        assert isinstance(protocol, StampedHandler), "the connector makes no others"
        protocol.begin(ARRIVING.get())
        return await super().start(connection)


class StampedConnector(aiohttp.TCPConnector):
    """A connector without limits: the dispatcher limits concurrency.

    `arrivals` stamps its connections. Needs a running event loop; options as aiohttp.TCPConnector.
    """

    def __init__(self, *, now_ns: Callable[[], int] = time.monotonic_ns, **options: Any) -> None:
        super().__init__(limit=0, **options)
        loop = asyncio.get_running_loop()
        self.arrivals = ArrivalQueue(loop, now_ns)
        self._factory = partial(  # type: ignore[assignment]  # of a kind of what it makes
            StampedHandler, loop=loop, arrivals=self.arrivals
        )
