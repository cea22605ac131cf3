"""Connections to the engines whose keys and values an engine reads, each with a thread.

A connection that fails takes the reads under way with it; the next read makes a new one.
"""

import logging
import threading
from dataclasses import dataclass
from typing import Final

from emulator.specs.kv_blocks import KvBlocks
from emulator.specs.step import KvSource
from serving.engine.remote_kv.connection import KvConnection, connected_to
from serving.engine.remote_kv.messages import (
    EngineFacts,
    Gone,
    KvMessage,
    Pull,
    Release,
    Taken,
    There,
)

SOURCES_MAX: Final = 128
"""Connections that are kept to engines of which nothing is read; vLLM's own limit of peers."""

logger = logging.getLogger(f"vllm.{__name__}")

Address = tuple[str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CameKv:
    """What came of a read: the numbers by chip of the source, or why there are none."""

    kv: tuple[KvBlocks, ...] = ()
    reason: str | None = None


class KvSources:
    """The engines that this one, of `facts`, reads from with the `key`."""

    def __init__(self, key: bytes, facts: EngineFacts) -> None:
        self._key = key
        self._facts = facts
        self._sources: dict[Address, _Source] = {}

    def pull(self, source: KvSource, message: Pull) -> None:
        """Begin to read; `came` has what comes of it."""
        self._at(source).send(message)

    def came(self, source: KvSource, read: str) -> CameKv | None:
        """What came of a read that has begun, as long as it has not ended; None before."""
        return self._sources[_address(source)].came(read)

    def end(self, source: KvSource, read: str, *, taken_tokens: int) -> None:
        """End a read, and tell the source so; without tokens, none came."""
        at, name = self._at(source), source.request_id
        at.forget(read)
        if taken_tokens:
            at.send(Taken(request_id=name, read=read, tokens=taken_tokens))
        else:
            at.send(Release(request_id=name, read=read))

    def release(self, source: KvSource) -> None:
        """Tell a source that a request has no need of its blocks."""
        self._at(source).send(Release(request_id=source.request_id))

    def close(self) -> None:
        """Close all connections."""
        for each in self._sources.values():
            each.close()

    def _at(self, source: KvSource) -> "_Source":
        address = _address(source)
        known = self._sources.get(address)
        if known is not None and not known.has_ended:
            return known
        idle = [name for name, each in self._sources.items() if each.is_idle and name != address]
        for other in idle[: max(0, len(self._sources) + 1 - SOURCES_MAX)]:
            self._sources.pop(other).close()
        self._sources[address] = made = _Source(address, self._key, self._facts)
        return made


class _Source:
    """One engine at an address, under its id."""

    def __init__(self, address: Address, key: bytes, facts: EngineFacts) -> None:
        self._address = address
        self._key = key
        self._facts = facts
        self._lock = threading.Lock()
        self._connection: KvConnection | None = None
        self._waiting: list[KvMessage] = []  # until it is connected
        self._came: dict[str, CameKv | None] = {}
        self._end: str | None = None
        threading.Thread(target=self._run, name="kv-source", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._end is not None and self.is_idle

    @property
    def is_idle(self) -> bool:
        return not self._came

    def send(self, message: KvMessage) -> None:
        with self._lock:
            if isinstance(message, Pull):
                ended = None if self._end is None else CameKv(reason=self._end)
                self._came[message.read] = ended
            if self._connection is None and self._end is None:
                self._waiting.append(message)
                return
            connection = self._connection
        if connection is not None:
            try:
                connection.send(message)
            except OSError as error:
                self._fail(str(error))

    def came(self, read: str) -> CameKv | None:
        with self._lock:
            return self._came[read]

    def forget(self, read: str) -> None:
        with self._lock:
            self._came.pop(read, None)

    def close(self) -> None:
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        host, port, _ = self._address
        try:
            connection = connected_to(host, port, self._key)
            try:
                self._greet(connection)
                while True:
                    self._take(connection.receive())
            finally:
                connection.close()
        except Exception as error:  # noqa: BLE001  whatever it is, who waits must hear of it
            self._fail(str(error) or type(error).__name__)

    def _greet(self, connection: KvConnection) -> None:
        connection.send(self._facts)
        other = connection.receive()
        if not isinstance(other, EngineFacts):
            raise ConnectionError("it does not say who it is")
        wanted = self._address[2]
        if other.engine_id != wanted:
            raise ConnectionError(f"engine {other.engine_id} is there now, not {wanted}")
        misfit = self._facts.misfit(other)
        if misfit is not None:
            raise ConnectionError(misfit)
        with self._lock:
            for each in self._waiting:
                connection.send(each)
            self._waiting = []
            self._connection = connection

    def _take(self, message: KvMessage) -> None:
        match message:
            case There():
                try:
                    came = CameKv(kv=tuple(each.blocks() for each in message.chips))
                except ValueError as error:
                    raise ConnectionError(f"blocks of a wrong shape: {error}") from error
            case Gone():
                came = CameKv(reason=message.reason)
            case _:
                raise ConnectionError("a message that only this side sends")
        with self._lock:
            if message.read in self._came:
                self._came[message.read] = came

    def _fail(self, reason: str) -> None:
        """All reads under way have failed, those whose blocks are here too: their way has not ended
        in emulated time.
        """
        host, port, _ = self._address
        with self._lock:
            self._end = reason = f"the engine at {host}:{port}: {reason}"
            self._connection = None
            self._waiting = []
            for name in self._came:
                self._came[name] = CameKv(reason=reason)


def _address(source: KvSource) -> Address:
    return source.host, source.port, source.engine_id
