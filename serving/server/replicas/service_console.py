"""The streams of a service's console: of all replicas, or of the one that a page shows.

All replicas: an event `replicas` each interval. One replica: the stream of its own console, as it
comes, and the event `gone` where there is none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec

from serving.server.console.event_stream import (
    STREAM_WALL_S_MAX,
    ReaderGone,
    Send,
    StreamAsked,
    ToldStream,
    event_bytes,
)
from serving.server.replicas.drawn_ports import HOST
from serving.server.replicas.live_replica import LiveReplica

_LOST: Final = (aiohttp.ClientError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSources:
    """What streams read: `listed` is the list of all replicas as JSON, not older than so many wall
    seconds; `number_of` reads a replica's number, and raises ConfigError; `key` is that of the
    replicas' consoles.
    """

    replicas: Sequence[LiveReplica]
    session: aiohttp.ClientSession
    listed: Callable[[float], Awaitable[bytes]]
    number_of: Callable[[str], int]
    key: str

    def stream(self, asked: StreamAsked, send: Send) -> ToldStream:
        """The stream of one reader; raises ConfigError for no such replica."""
        if asked.replica is None:
            return ServiceStream(self, asked, send)
        return ReplicaStream(self, self.number_of(asked.replica), asked, send)


class ServiceStream:
    """What all replicas are doing, each interval."""

    def __init__(self, sources: ConsoleSources, asked: StreamAsked, send: Send) -> None:
        self._sources = sources
        self._asked = asked
        self._send = send

    async def run(self) -> None:
        """Send until the reader has gone, or the time limit."""
        interval_s = self._asked.interval_s
        with suppress(TimeoutError, ReaderGone):
            async with asyncio.timeout(STREAM_WALL_S_MAX):
                while self._asked.may_read():
                    data = await self._sources.listed(interval_s / 2)
                    await self._send(event_bytes("replicas", data))
                    await asyncio.sleep(interval_s)


class ReplicaStream:
    """One replica's own stream, passed on."""

    def __init__(
        self, sources: ConsoleSources, number: int, asked: StreamAsked, send: Send
    ) -> None:
        self._sources = sources
        self._replica = sources.replicas[number]
        self._asked = asked
        self._send = send

    async def run(self) -> None:
        """Send until the reader or the replica has gone."""
        place = self._replica.place
        url = f"http://{HOST}:{place.console_port}/stream"
        headers = {"Authorization": f"Bearer {self._sources.key}"}
        if self._asked.last_id is not None:
            headers["Last-Event-ID"] = self._asked.last_id
        given = {"interval_s": f"{self._asked.interval_s:g}"}
        with suppress(ReaderGone):
            try:
                async with self._sources.session.get(url, params=given, headers=headers) as said:
                    if said.status == HTTPStatus.OK:
                        await self._pass_on(said.content)
                        return
            except _LOST:
                pass  # as one that has not begun
            words = f"replica {place.number} is {self._replica.state}"
            if self._replica.reason:
                words += f": {self._replica.reason}"
            await self._send(event_bytes("gone", msgspec.json.encode({"words": words})))

    async def _pass_on(self, content: aiohttp.StreamReader) -> None:
        async for piece in content.iter_any():
            if not self._asked.may_read():
                raise ReaderGone
            await self._send(piece)
