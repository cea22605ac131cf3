"""Connections to the engines whose keys and values an engine reads, and to which it pushes its own.

A connection that fails takes the reads and parts under way with it; the next read makes a new one.
"""

import asyncio
import contextlib
import logging
import math
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvSource
from serving.engine.remote_kv.connection import KvConnection, TooLongMessage, connected_to
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.layout import ComingKv, numbers_of
from serving.engine.remote_kv.limits import (
    PACKET_BYTES_MAX,
    PART_BYTES,
    PULL_BYTES_MAX,
    WAITS_MAX,
    KvLimits,
)
from serving.engine.remote_kv.messages import (
    EngineFacts,
    Gone,
    KvMessage,
    Part,
    Pull,
    Push,
    Release,
    Taken,
    There,
    Waits,
)

Address = tuple[str, int, str]

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CameKv:
    """What came of a read: the numbers by part of the source, or why there are none."""

    kv: tuple[KvBlocks, ...] = ()
    reason: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Read:
    """One read; its `source` is the loop's, None for one that was not begun; `came` is read by the
    engine.
    """

    pull: Pull
    source: "_Source | None" = None
    coming: ComingKv | None = None
    came: CameKv | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class PushedPart:
    """A part on its way to another engine, and its answer: `to_chips` of a rank there once it has
    come, 0 where it is refused or lost.
    """

    push: Push
    kv: tuple[KvBlocks, ...]
    to_chips: int | None = None

    def messages(self) -> Iterator[KvMessage]:
        """What goes."""
        yield self.push
        for data in numbers_of(self.kv, first_block=0, most_bytes=PART_BYTES):
            yield Part(read=self.push.read, data=bytes(data))
        yield There(read=self.push.read)


class KvSources:
    """The engines that this one, of `facts`, reads from, or pushes to, with the `key`; used by the
    engine.
    """

    def __init__(self, loop: KvLoop, *, key: bytes, facts: EngineFacts, limits: KvLimits) -> None:
        self._loop = loop
        self._key = key
        self._facts = facts
        self._limits = limits
        self._reads: dict[str, _Read] = {}
        self._sources: dict[Address, _Source] = {}  # the loop's, as the next
        self._awaiting: dict[str, KvSource] = {}
        self._proved: set[Address] = set()
        self._dials = asyncio.Semaphore(limits.dials_max)
        self._block_bytes, self._bytes_max = 0, 0
        self.lease_s = facts.lease_s
        """The shortest lease of this engine and those that are connected, emulated."""

    def bound(self, *, block_bytes: int, bytes_max: int) -> None:
        """Let copies of all that is read, so many bytes in a block, have at most so many."""
        self._block_bytes, self._bytes_max = block_bytes, bytes_max

    def pull(self, source: KvSource, message: Pull) -> None:
        """Begin to read; `came` has what comes of it: nothing, where there is no room for it."""
        blocks = message.blocks + sum(each.pull.blocks for each in self._reads.values())
        read = self._reads[message.read] = _Read(pull=message)
        if blocks * self._block_bytes > self._bytes_max:
            words = "with it, copies of what comes would have more than {:.0f} MB"
            read.came = CameKv(reason=words.format(self._bytes_max / 1e6))
        else:
            self._loop.call(self._pull, source, read)

    def push(self, target: KvSource, push: Push, kv: tuple[KvBlocks, ...]) -> PushedPart:
        """Begin to push a part, whose answer is the result's `to_chips`."""
        part = PushedPart(push=push, kv=kv)
        self._loop.call(lambda: self._at(target).push(part))
        return part

    def give_up(self, target: KvSource, push: Push) -> None:
        """Tell an engine that a prompt's other parts do not come: a push without blocks."""
        self._loop.call(lambda: self._at(target).say(push))

    def came(self, read: str) -> CameKv | None:
        """What came of a read that has begun, as long as it has not ended; None before."""
        return self._reads[read].came

    def end(self, source: KvSource, name: str, *, taken_tokens: int) -> None:
        """End a read, and tell the source so; without tokens, none came."""
        read = self._reads.pop(name, None)
        if read is None:  # it was given up before it began
            self.release(source, name)
        else:
            self._loop.call(self._end, source, read, taken_tokens)

    def await_room(self, source: KvSource, request_id: str) -> None:
        """Let a source hear, with each heartbeat, that a request here waits for room."""
        self._loop.call(self._awaiting.__setitem__, request_id, source)

    def release(self, source: KvSource, request_id: str) -> None:
        """Tell a source that a request here has no need of its blocks."""
        self._loop.call(self._release, source, request_id)

    def beat(self) -> None:
        """Tell all sources what is waited for, or read."""
        self._loop.call(self._beat)

    def _pull(self, source: KvSource, read: _Read) -> None:
        self._awaiting.pop(read.pull.read, None)
        read.source = at = self._at(source)
        at.pull(read)

    def _end(self, source: KvSource, read: _Read, taken_tokens: int) -> None:
        if read.source is None:
            self._release(source, read.pull.read)
        else:
            read.source.end(read, taken_tokens)

    def _beat(self) -> None:
        self._find_lease()
        waits: dict[_Source, set[str]] = defaultdict(set)
        for source in self._awaiting.values():
            waits[self._at(source)].add(source.request_id)
        for at in self._sources.values():
            waits[at] |= at.reading
        for at, names in waits.items():
            ids = sorted(names)
            for begin in range(0, len(ids), WAITS_MAX):
                at.say(Waits(request_ids=ids[begin : begin + WAITS_MAX]))

    def _find_lease(self) -> None:
        others_s = (each.lease_s for each in self._sources.values())
        self.lease_s = min([self._facts.lease_s, *others_s])

    def _release(self, source: KvSource, request_id: str) -> None:
        self._awaiting.pop(request_id, None)
        self._at(source).say(Release(request_id=source.request_id))

    def _at(self, source: KvSource) -> "_Source":
        address = _address_of(source)
        known = self._sources.get(address)
        if known is not None and not known.has_ended:
            return known
        needed = {address, *map(_address_of, self._awaiting.values())}
        idle = [name for name, each in self._sources.items() if each.is_idle and name not in needed]
        for other in idle[: max(0, len(self._sources) + 1 - self._limits.sources_max)]:
            self._sources.pop(other).close()
        self._sources[address] = made = _Source(
            self._loop,
            address,
            key=self._key,
            facts=self._facts,
            limits=self._limits,
            dials=None if address in self._proved else self._dials,
            on_connected=lambda: self._has_connected(address),
        )
        return made

    def _has_connected(self, address: Address) -> None:
        self._proved.add(address)
        self._find_lease()


def _address_of(source: KvSource) -> Address:
    return source.host, source.port, source.engine_id


class _Source:
    """One engine at an address, under its id; all in the loop."""

    def __init__(
        self,
        loop: KvLoop,
        address: Address,
        *,
        key: bytes,
        facts: EngineFacts,
        limits: KvLimits,
        dials: asyncio.Semaphore | None,
        on_connected: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._key = key
        self._facts = facts
        self._limits = limits
        self._connection: KvConnection | None = None
        self._other: EngineFacts | None = None
        self._waiting: list[KvMessage] = []  # until it is connected
        self._sending = 0
        self._dials = dials
        self._on_connected = on_connected
        self._reads: dict[str, _Read] = {}
        self._parts: dict[str, PushedPart] = {}
        self._turn = asyncio.Lock()
        self._silence = asyncio.timeout(None)
        self._end: str | None = None
        self._task = loop.start(self._run())

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    @property
    def reading(self) -> set[str]:
        """Requests there of which there are reads here."""
        return {each.pull.request_id for each in self._reads.values()}

    @property
    def is_idle(self) -> bool:
        """Whether it can be closed: nothing is read, and all that was to be said has gone."""
        connection = self._connection
        unsent = self._waiting or self._sending or not (connection is None or connection.has_sent)
        return not self._reads and not self._parts and not unsent

    @property
    def lease_s(self) -> float:
        """For which it holds what is read there, emulated; without end while it is not known."""
        other = self._other if self._connection is not None else None
        return math.inf if other is None else other.lease_s

    def pull(self, read: _Read) -> None:
        self._reads[read.pull.read] = read
        self.say(read.pull)
        if self._end is not None:
            read.came = CameKv(reason=self._end)
        elif self._connection is not None and self._silence.when() is None:
            self._wait_for_answer()

    def push(self, part: PushedPart) -> None:
        """Send a part after those before it."""
        if self._end is not None:
            part.to_chips = 0
            return
        self._parts[part.push.read] = part
        if self._connection is not None:
            self._loop.start(self._send_part(self._connection, part))
            if self._silence.when() is None:
                self._wait_for_answer()

    async def _send_part(self, connection: KvConnection, part: PushedPart) -> None:
        async with self._turn:
            try:
                for each in part.messages():
                    if part.to_chips is not None:  # it is refused already
                        return
                    await connection.send(each)
            except OSError as error:
                self._fail(error)
                connection.close()

    def end(self, read: _Read, taken_tokens: int) -> None:
        name, request_id = read.pull.read, read.pull.request_id
        del self._reads[name]
        if taken_tokens:
            self.say(Taken(request_id=request_id, read=name, tokens=taken_tokens))
        else:
            self.say(Release(request_id=request_id, read=name))
        self._end_silence()

    def say(self, message: KvMessage) -> None:
        """Send it, or when it is connected; not when it has ended."""
        if self._connection is not None:
            self._sending += 1
            self._loop.start(self._send(self._connection, message))
        elif self._end is None:
            self._waiting.append(message)

    def close(self) -> None:
        self._task.cancel()

    async def _send(self, connection: KvConnection, message: KvMessage) -> None:
        most_bytes = PULL_BYTES_MAX if isinstance(message, Pull) else PACKET_BYTES_MAX
        try:
            await connection.send(message, most_bytes)
        except TooLongMessage as error:
            read = self._reads.get(message.read) if isinstance(message, Pull) else None
            if read is None:
                logger.warning("KV: %s is not sent: %s", type(message).__name__, error)
            else:
                read.came = CameKv(reason=str(error))
                self._end_silence()
        except OSError as error:
            self._fail(error)
            connection.close()
        finally:
            self._sending -= 1

    async def _run(self) -> None:
        try:
            async with self._turn_to_dial():
                host, port, _ = self._address
                connection, self._other = await connected_to(
                    host, port, key=self._key, facts=self._facts, limits=self._limits
                )
            try:
                self._check(self._other)
                await self._talk(connection)
            finally:
                connection.close()
        except Exception as error:  # noqa: BLE001  whatever it is, who waits must hear of it
            self._fail(error)
        finally:
            self._connection = None

    @contextlib.asynccontextmanager
    async def _turn_to_dial(self) -> AsyncIterator[None]:
        if self._dials is None:
            yield
            return
        try:
            async with asyncio.timeout(self._limits.answer_wall_s):
                await self._dials.acquire()
        except TimeoutError as error:
            words = f"other engines were dialled for {self._limits.answer_wall_s:g} s"
            raise TimeoutError(words) from error
        try:
            yield
        finally:
            self._dials.release()

    def _check(self, other: EngineFacts) -> None:
        """Raise ConnectionError unless it is who was meant, where it says, with KV that fits: what
        a stranger passes on between two engines comes from another address.
        """
        host, port, engine_id = self._address
        if other.engine_id != engine_id:
            raise ConnectionError(f"engine {other.engine_id} is there now, not {engine_id}")
        if (other.host, other.port) != (host, port):
            raise ConnectionError(f"it says that it is at {other.host}:{other.port}")
        misfit = self._facts.misfit(other)
        if misfit is not None:
            raise ConnectionError(misfit)

    async def _talk(self, connection: KvConnection) -> None:
        self._connection = connection
        self._on_connected()
        for each in self._waiting:
            self.say(each)
        self._waiting = []
        for part in self._parts.values():
            self._loop.start(self._send_part(connection, part))
        try:
            async with self._silence:
                while True:
                    self._wait_for_answer()
                    self._take(await connection.receive())
        except TimeoutError as error:
            if not self._silence.expired():
                raise
            words = f"no answer for {self._limits.answer_wall_s:g} s"
            raise TimeoutError(words) from error

    def _wait_for_answer(self) -> None:
        """Let the time that it may be silent begin now, if it owes an answer."""
        now_s = asyncio.get_running_loop().time()
        self._silence.reschedule(now_s + self._limits.answer_wall_s if self._owes else None)

    def _end_silence(self) -> None:
        """It may be silent from now on, if it owes no answer any more."""
        if self._connection is not None and not self._owes and not self._silence.expired():
            self._silence.reschedule(None)

    @property
    def _owes(self) -> bool:
        return bool(self._parts) or any(each.came is None for each in self._reads.values())

    def _take(self, message: KvMessage) -> None:
        """Raises ConnectionError for what does not fit."""
        if isinstance(message, Taken | Gone) and message.read in self._parts:
            part = self._parts.pop(message.read)
            assert self._other is not None
            part.to_chips = self._other.tp if isinstance(message, Taken) else 0
            self._end_silence()
            return
        if not isinstance(message, Part | There | Gone):
            raise ConnectionError("a message that only this side sends")
        read = self._reads.get(message.read)
        if read is None or (read.came is not None and not isinstance(message, Gone)):
            return  # it has ended here, or has failed
        match message:
            case Part():
                self._coming(read).add(message.data)
            case There():
                read.came = CameKv(kv=self._coming(read).whole())
                read.coming = None
            case Gone():
                read.came = CameKv(reason=message.reason)
                read.coming = None

    def _coming(self, read: _Read) -> ComingKv:
        if read.coming is None:
            layout, other = self._facts.layout, self._other
            assert other is not None
            shapes: list[tuple[int, ...]] = []
            if layout is not None:
                shapes = layout.shapes(
                    other.tp, blocks=read.pull.blocks, block_tokens=other.block_tokens
                )
            read.coming = ComingKv(shapes)
        return read.coming

    def _fail(self, error: Exception) -> None:
        """All reads under way have failed, those whose blocks are here too: their way has not ended
        in emulated time.
        """
        if self._end is not None:
            return
        host, port, _ = self._address
        self._end = f"the engine at {host}:{port}: {_words_of(error)}"
        self._connection = None
        self._waiting = []
        for each in self._reads.values():
            each.came = CameKv(reason=self._end)
        for part in self._parts.values():
            part.to_chips = 0
        self._parts = {}


def _words_of(error: Exception) -> str:
    """What happened; of the system's errors their own words, without asyncio's."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
