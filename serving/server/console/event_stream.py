"""Server-sent events: the console's data, as it changes, to one reader.

Snapshots are shared by all readers; a slow reader skips some, as the next is fetched after the last
is written. While the engine does not answer, `late` events carry the last one's age. Machine events
are never skipped while the server remembers them: each has an id, RUN:NUMBER, and a reconnecting
reader names its last.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from emulator.errors import ConfigError
from serving.server.console.call_answer import NO_REPLICAS
from serving.server.engine_call import ENGINE_GONE, EngineFailed, EngineGone
from serving.server.gateway.grpc.rpc_errors import CallRefused
from serving.wire.telemetry import EventKind, MachineEvent

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

INTERVAL_S: Final = 1.0
INTERVAL_S_MIN: Final = 0.25
INTERVAL_S_MAX: Final = 60.0

STREAM_WALL_S_MAX: Final = 3_600.0
"""A browser then reconnects with its last id."""

HISTORY_EVENTS_MAX: Final = 512
"""Past events for a new reader: as many as a page shows."""

_SELDOM_S: Final = 5.0
"""Period of parts that change seldom or are slow."""

_SIGN_OF_LIFE_S: Final = 15.0
"""Proxies may close streams silent for longer."""

_MAX_AGE_INTERVALS: Final = 0.5
"""Age limit of a shared snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareEvent:
    """A numbered snapshot; `age_s` is wall time since its request."""

    number: int
    json: bytes
    age_s: float


class Looks(Protocol):
    """The console's data as JSON; None: absent, or not yet there.

    All raise EngineGone, EngineFailed. `run` identifies the server's run.
    """

    @property
    def run(self) -> str:
        """The run whose events are numbered."""

    @property
    def last_number(self) -> int:
        """The newest event's; 0 before the first."""

    def happened(self, after: int) -> AsyncGenerator[tuple[MachineEvent, int], None]:
        """Each event after that number, and how many before it are forgotten. Raises CallRefused,
        EngineGone at the end.
        """

    async def hardware(self, *, max_age_s: float, within_s: float) -> HardwareEvent | None:
        """A snapshot of at most that age, or the last one of a slow engine."""

    async def part(self, name: str, *, max_age_s: float) -> bytes | None:
        """Another event's data: `daynight`, `experts` (load), `latency` (recent), `admission` (in
        flight and refused).
        """


class ReaderGone(Exception):
    """The reader has disconnected, or its session has ended."""


Send = Callable[[bytes], Awaitable[None]]
"""Writes once the reader has room; raises ReaderGone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAsked:
    """What a reader asks for. `last_id` is of the last event that it knows, `replica` names one of
    a service's, `may_read` says whether it is still authorized.
    """

    interval_s: float = INTERVAL_S
    last_id: str | None = None
    replica: str | None = None
    may_read: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        """Raise ConfigError for an interval out of range."""
        if not INTERVAL_S_MIN <= self.interval_s <= INTERVAL_S_MAX:
            expected = f"{INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds"
            raise ConfigError("interval_s", self.interval_s, expected)


class ToldStream(Protocol):
    """One reader's stream."""

    async def run(self) -> None:
        """Send until its end."""


Streams = Callable[[StreamAsked, Send], ToldStream]
"""Makes the stream of one reader; raises ConfigError for what is not there."""


class EventStream:
    """One reader's stream, of one engine."""

    def __init__(self, looks: Looks, send: Send, asked: StreamAsked | None = None) -> None:
        asked = asked or StreamAsked()
        self._looks = looks
        self._write = send
        self._interval_s = asked.interval_s
        self._after = after_id(asked.last_id, run=looks.run, newest=looks.last_number)
        self._may_read = asked.may_read
        self._one_at_a_time = asyncio.Lock()
        self._leases_changed = asyncio.Event()
        self._hardware_number = 0  # of the look that was told last, and when it was asked for
        self._looked_s: float | None = None

    async def run(self) -> None:
        """Send until the reader or the engine has gone, or the time limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STREAM_WALL_S_MAX):
                await self._tell_all()

    async def _tell_all(self) -> None:
        often_s, seldom_s = self._interval_s, max(self._interval_s, _SELDOM_S)
        try:
            async with asyncio.TaskGroup() as group:
                for what in (
                    self._happened(),
                    self._again("hardware", self._hardware, often_s),
                    self._again(
                        "latency", self._part("latency", _MAX_AGE_INTERVALS * often_s), often_s
                    ),
                    self._again("admission", self._part("admission", 0.0), often_s),
                    self._again("daynight", self._day_night, seldom_s, self._leases_changed),
                    self._again("experts", self._part("experts", _SELDOM_S / 2), seldom_s),
                    self._signs_of_life(),
                ):
                    group.create_task(what)
        except* EngineGone:
            with suppress(ReaderGone):
                await self._send("gone", msgspec.json.encode({"words": ENGINE_GONE}))
        except* (CallRefused, ReaderGone):
            pass  # the server ends, or there is nobody: the response's end says it

    async def _happened(self) -> None:
        """Send events in order; their end is the stream's."""
        before = self._looks.last_number - HISTORY_EVENTS_MAX
        dropped = max(0, before - self._after)
        async with aclosing(self._looks.happened(self._after + dropped)) as events:
            async for event, lost in events:
                if dropped + lost:
                    await self._send("dropped", msgspec.json.encode({"events": dropped + lost}))
                dropped = 0
                name = f"{self._looks.run}:{event.number}"
                await self._send("happened", msgspec.json.encode(event), name)
                if event.kind is EventKind.LEASE:
                    self._leases_changed.set()

    async def _hardware(self) -> None:
        """Send a new snapshot, or `late` with the age of an old one."""
        max_age_s = _MAX_AGE_INTERVALS * self._interval_s
        try:
            look = await self._looks.hardware(max_age_s=max_age_s, within_s=self._interval_s)
        except EngineFailed:
            await self._late()
            raise
        if look is not None and look.number != self._hardware_number:
            await self._send("hardware", look.json)
            self._hardware_number, self._looked_s = look.number, time.monotonic() - look.age_s
        if look is None or look.age_s > max_age_s + self._interval_s:
            await self._late()

    async def _late(self) -> None:
        age_s = None if self._looked_s is None else time.monotonic() - self._looked_s
        await self._send("late", msgspec.json.encode({"age_s": age_s}))

    def _part(self, name: str, max_age_s: float) -> Callable[[], Awaitable[bytes | None]]:
        return partial(self._looks.part, name, max_age_s=max_age_s)

    async def _day_night(self) -> bytes | None:
        changed = self._leases_changed.is_set()
        self._leases_changed.clear()
        return await self._looks.part("daynight", max_age_s=0.0 if changed else _SELDOM_S / 2)

    async def _again(
        self,
        name: str,
        look: Callable[[], Awaitable[bytes | None]],
        interval_s: float,
        sooner: asyncio.Event | None = None,
    ) -> None:
        """Fetch and send periodically; missed periods are skipped."""
        due_s, failed = time.monotonic(), False
        while True:
            if not self._may_read():
                raise ReaderGone
            try:
                data = await look()
            except EngineGone:
                return  # which is told after all that has happened before
            except EngineFailed as error:
                if not failed:  # once, until there is one again
                    logger.warning("a page misses %s: %.200s", name, error)
                data, failed = None, True
            else:
                failed = False
            if data is not None:
                await self._send(name, data)
            now_s = time.monotonic()
            due_s += interval_s * max(1, math.ceil((now_s - due_s) / interval_s))
            await _rest(due_s - now_s, sooner)

    async def _signs_of_life(self) -> None:
        while True:
            await asyncio.sleep(_SIGN_OF_LIFE_S)
            async with self._one_at_a_time:
                await self._write(b":\n\n")

    async def _send(self, name: str, data: bytes, event_id: str | None = None) -> None:
        async with self._one_at_a_time:
            await self._write(event_bytes(name, data, event_id))


def engine_streams(looks: Looks) -> Streams:
    """Streams of one engine; a replica's name is refused, as there is no other."""

    def stream(asked: StreamAsked, send: Send) -> EventStream:
        if asked.replica is not None:
            raise ConfigError("replica", asked.replica[:40], NO_REPLICAS)
        return EventStream(looks, send, asked)

    return stream


def event_bytes(name: str, data: bytes, event_id: str | None = None) -> bytes:
    """One event as it travels."""
    known = b"" if event_id is None else f"id: {event_id}\n".encode()
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), known, data)


def after_id(last_id: str | None, *, run: str, newest: int) -> int:
    """The number after which a reader with `last_id` continues; 0: the beginning, also after
    another run, whose numbers are others.
    """
    named, _, number = (last_id or "").rpartition(":")
    if named != run or not (number.isascii() and number.isdecimal() and len(number) < 20):
        return 0
    return int(number) if int(number) <= newest else 0


async def _rest(wall_s: float, sooner: asyncio.Event | None) -> None:
    if sooner is None:
        await asyncio.sleep(wall_s)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(wall_s):
            await sooner.wait()
