"""Turns of calls to read their messages.

gRPC's core buffers a whole message once a call waits for it, before that the stream's first window
alone: so a call first waits for a turn, which has a time. Calls without a key share few turns, one
per connection, shorter while others wait: a probe's message comes with its headers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from serving.server.gateway.grpc.rpc_errors import CallRefused, exhausted
from serving.server.gateway.http.request_body import LARGE_BYTES
from serving.server.gateway.ingress_account import Holding, IngressAccount
from serving.server.gateway.ingress_limits import Limit

STRANGER_TURNS: Final = 2
"""Turns at a time, over all connections."""

STRANGER_WAIT_S: Final = 1.0
"""Wall seconds of a message without a key while no other waits."""

STRANGER_HASTE_S: Final = 0.05
"""The same while another waits."""

STRANGER_CALLS_MAX: Final = 1_024
"""Calls that wait or have a turn, each with a stream's window. One more ends the last call of the
connection that has most."""

CONNECTION_CALLS_MAX: Final = 128
"""Such calls of one connection."""

KEY_TURNS: Final = 8
"""Turns at a time of one key. Each counts an eighth of the key's bytes until its message has come;
one without room waits."""

KEY_CALLS_MAX: Final = 4_096
"""Calls of one key that wait or have a turn."""

STREAM_TURNS: Final = 2
"""Turns at a time of one key, for calls that send several messages (reflection)."""

STREAM_WAIT_S: Final = 5.0
"""Wall seconds that such a call may be silent while no other waits."""

STREAM_HASTE_S: Final = 0.5
"""The same while another waits: one round trip."""

_RETRY_S: Final = 1.0


class HeldMessage:
    """A message's counted bytes, from its turn until `let_go`."""

    def __init__(self, account: IngressAccount, holding: Holding) -> None:
        self._account = account
        self._holding = holding

    def has_come(self, size_bytes: int) -> None:
        """Count its real size, if less; a small message no more."""
        if size_bytes < LARGE_BYTES:
            self.let_go()
        elif size_bytes < self._holding.held_bytes:
            self._account.release(self._holding, self._holding.held_bytes - size_bytes)

    def let_go(self) -> None:
        """Count it no more; idempotent."""
        self._account.leave(self._holding)


class MessageLate(CallRefused):
    """The message did not come in its turn's time."""


@dataclass(slots=True)
class _Queue:
    """Calls of one sort; a turn's wall seconds are `wait_s`, and `haste_s` while others wait.

    First come, first served; with `newest_first` the last, so that stalling calls wait for each
    other. A turn also needs `may_begin`; its end may begin one in any queue of `family`.
    """

    turns: int
    wait_s: float
    haste_s: float
    newest_first: bool = False
    may_begin: Callable[[], bool] = lambda: True
    family: tuple["_Queue", ...] = ()
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    reading: dict[asyncio.Timeout, float] = field(default_factory=dict)  # since when
    taken: int = 0

    @property
    def calls(self) -> int:
        return len(self.waiting) + self.taken

    @property
    def has_turn(self) -> bool:
        return self.taken < self.turns and self.may_begin()


@dataclass(frozen=True, slots=True)
class _KeyQueues:
    """Queues of one key, whose turns count against the same bytes."""

    messages: _Queue
    streams: _Queue

    @property
    def calls(self) -> int:
        return self.messages.calls + self.streams.calls


class MessageTurns:
    """The turns of one server, for messages of at most `message_bytes_max`."""

    def __init__(self, account: IngressAccount, *, message_bytes_max: int) -> None:
        limits = account.limits
        self._account = account
        self._key_bytes = min(message_bytes_max, limits.key_bytes_max // KEY_TURNS)
        self._stranger_bytes = min(
            message_bytes_max, limits.stranger_bytes_max // (STRANGER_TURNS + 1)
        )
        self._key_wait_s = limits.time_s(message_bytes_max)
        self._key_haste_s = limits.body_wait_s
        self._strangers = _Queue(
            STRANGER_TURNS, STRANGER_WAIT_S, STRANGER_HASTE_S, newest_first=True
        )
        self._connections: dict[str, _Queue] = {}
        self._keys: dict[str, _KeyQueues] = {}

    @asynccontextmanager
    async def of_stranger(self, connection: str) -> AsyncIterator[HeldMessage]:
        """A turn for a call without a key, whose message is read within the block.

        Raises CallRefused: too many such calls, or a late message.
        """
        own = self._connections.setdefault(connection, _Queue(1, STRANGER_WAIT_S, STRANGER_WAIT_S))
        try:
            if own.calls >= CONNECTION_CALLS_MAX:
                raise self._refused(Limit.CALLS)
            if sum(each.calls for each in self._connections.values()) >= STRANGER_CALLS_MAX:
                self._make_room()
            async with (
                self._turn(own),
                self._turn(self._strangers),
                self._time(self._strangers) as time,
            ):
                holding = self._account.arrive(_Reading(time))
                if (limit := self._account.hold(holding, self._stranger_bytes)) is not None:
                    raise self._refused(limit, is_counted=True)
                held = HeldMessage(self._account, holding)
                try:
                    yield held
                finally:
                    held.let_go()
        finally:
            if not own.calls:
                self._connections.pop(connection, None)

    def _make_room(self) -> None:
        """Refuse the last waiting call of the connection with most, else the oldest call."""
        most = max(self._connections.values(), key=lambda each: len(each.waiting))
        if most.waiting:
            turn = most.waiting.pop()
        elif self._strangers.waiting:
            turn = self._strangers.waiting.popleft()
        else:
            raise self._refused(Limit.CALLS)
        if not turn.done():  # else it was cancelled, and is gone
            turn.set_exception(self._refused(Limit.CALLS))

    @asynccontextmanager
    async def of_key(self, key: str, *, of_several: bool = False) -> AsyncIterator[HeldMessage]:
        """A turn for a call with `key`; a large message is counted beyond the block.

        `of_several`: its next of several messages. Raises CallRefused, as `of_stranger`.
        """
        queues = self._keys.get(key)
        if queues is None:
            queues = self._keys[key] = self._queues_of(key)
        own = queues.streams if of_several else queues.messages
        try:
            if own.calls >= KEY_CALLS_MAX:
                raise self._refused(Limit.CALLS)
            async with self._turn(own), self._time(own):
                holding = self._account.open(key)
                if (limit := self._account.hold(holding, self._key_bytes)) is not None:
                    raise self._refused(limit, is_counted=True)
                held = HeldMessage(self._account, holding)
                try:
                    yield held
                except BaseException:
                    held.let_go()
                    raise
        finally:
            if not queues.calls:
                self._keys.pop(key, None)

    def _queues_of(self, key: str) -> _KeyQueues:
        may_begin = partial(self._may_begin, key)
        messages = _Queue(KEY_TURNS, self._key_wait_s, self._key_haste_s, may_begin=may_begin)
        streams = _Queue(STREAM_TURNS, STREAM_WAIT_S, STREAM_HASTE_S, may_begin=may_begin)
        messages.family = streams.family = (streams, messages)
        return _KeyQueues(messages, streams)

    def _may_begin(self, key: str) -> bool:
        """Whether a turn fits beside the key's bytes. A key's only turn may begin, and be refused
        with the reason: no turn's end would make room.
        """
        queues = self._keys[key]
        if not (taken := queues.messages.taken + queues.streams.taken):
            return True
        reading = len(queues.messages.reading) + len(queues.streams.reading)
        begun_bytes = (taken - reading) * self._key_bytes  # of turns that are given, not taken up
        held_bytes = self._account.bytes_of(key) + begun_bytes
        return held_bytes + self._key_bytes <= self._account.limits.key_bytes_max

    @asynccontextmanager
    async def _turn(self, queue: _Queue) -> AsyncIterator[None]:
        if queue.waiting or not queue.has_turn:
            await self._wait_in(queue)
        else:
            queue.taken += 1
        try:
            yield
        finally:
            queue.taken -= 1
            _wake(queue)

    async def _wait_in(self, queue: _Queue) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting.append(turn)
        try:
            _hurry(queue)
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # It was given, and is not taken up any more.
                queue.taken -= 1
                _wake(queue)
            else:
                with contextlib.suppress(ValueError):
                    queue.waiting.remove(turn)
            raise

    @asynccontextmanager
    async def _time(self, queue: _Queue) -> AsyncIterator[asyncio.Timeout]:
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(now_s + queue.wait_s) as time:
                queue.reading[time] = now_s
                if queue.waiting:
                    _hurry(queue)
                try:
                    yield time
                finally:
                    del queue.reading[time]
        except TimeoutError:
            if not time.expired():
                raise
            raise MessageLate(self._refused(Limit.MESSAGE_TIME).failure) from None

    def _refused(self, limit: Limit, *, is_counted: bool = False) -> CallRefused:
        if not is_counted:
            self._account.refuse(limit)
        failure = exhausted(limit.value.upper(), _WORDS[limit], retry_after_s=_RETRY_S)
        return CallRefused(failure)


@dataclass(frozen=True, slots=True)
class _Reading:
    time: asyncio.Timeout

    def cut_off(self, limit: Limit) -> None:
        del limit
        if not self.time.expired():
            self.time.reschedule(0.0)


def _wake(queue: _Queue) -> None:
    for each in queue.family or (queue,):
        while each.waiting and each.has_turn:
            turn = each.waiting.pop() if each.newest_first else each.waiting.popleft()
            if not turn.done():
                each.taken += 1
                turn.set_result(None)


def _hurry(queue: _Queue) -> None:
    """Bound all turns by `haste_s` from their beginning, as another call waits."""
    for time, since_s in queue.reading.items():
        until_s = since_s + queue.haste_s
        when_s = time.when()
        # One whose time is over is about to end, and takes no other time any more.
        if when_s is not None and when_s > until_s and not time.expired():
            time.reschedule(until_s)


_WORDS: Final = {
    Limit.CALLS: "too many calls wait to be read",
    Limit.MESSAGE_TIME: "the call's message did not arrive in time",
    Limit.STRANGER_BYTES: "too much arrives at once from callers without a key",
    Limit.KEY_BYTES: "too much arrives at once with this key",
    Limit.TOTAL_BYTES: "too much arrives at once",
}
