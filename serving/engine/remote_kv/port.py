"""The port at which an engine gives out keys and values, and takes those that others push: neither
waits for the end of a step.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from dataclasses import dataclass, field
from typing import Final

from emulator.errors import ConfigError
from serving.engine.remote_kv.arrivals import KvArrivals, PushReader
from serving.engine.remote_kv.connection import KvConnection, accepted
from serving.engine.remote_kv.kv_loop import KvLoop
from serving.engine.remote_kv.layout import numbers_of
from serving.engine.remote_kv.limits import PACKET_BYTES_MAX, PART_BYTES, KvLimits
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
from serving.engine.remote_kv.offers import KvOffer, KvOffers

_OF_PORT: Final = (errno.EADDRINUSE, errno.EACCES)

_LINE_EVERY_WALL_S: Final = 10.0

logger = logging.getLogger(f"vllm.{__name__}")  # below a name that the engine's process shows


class KvPort:
    """Listens where `facts` say, for engines with the `key`; raises ConfigError where it cannot."""

    def __init__(
        self,
        loop: KvLoop,
        *,
        key: bytes,
        facts: EngineFacts,
        offers: KvOffers,
        arrivals: KvArrivals,
        limits: KvLimits,
    ) -> None:
        self._loop = loop
        self._key = key
        self._facts = facts
        self._offers = offers
        self._arrivals = arrivals
        self._limits = limits
        self._readers: dict[str, tuple[_KvReader, str]] = {}  # and name of the read, by request
        self._connected = 0
        self._refusals = _Refusals(loop)
        self._unproved: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._news = asyncio.Event()
        listener = _listener(facts.host, facts.port)
        offers.on_loss = lambda *loss: loop.call(self._tell_loss, *loss)
        offers.on_news = lambda: loop.call(self._tell_news)
        loop.run(self._listen(listener))

    async def _listen(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._meet, sock=listener, limit=PACKET_BYTES_MAX)
        self._loop.start(server.serve_forever())

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._unproved) == self._limits.unproved_max:
            oldest = next(iter(self._unproved))
            self._unproved.pop(oldest).transport.abort()
        self._unproved[self._loop.start(self._serve(reader, writer))] = writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            connection, other = await accepted(
                reader, writer, key=self._key, facts=self._facts, limits=self._limits
            )
        except (OSError, EOFError) as error:
            self._refusals.add(str(error))
            return
        finally:
            self._unproved.pop(task, None)
        self._connected += 1
        pushes = PushReader(self._arrivals, self._facts, other)
        peer = _KvReader(connection=connection, facts=other, pushes=pushes)
        try:
            misfit = self._facts.misfit(other)
            if misfit is not None:
                self._refusals.add(misfit)
                return
            if self._connected > self._limits.readers_max:
                self._refusals.add(f"an engine beyond {self._limits.readers_max}")
                return
            while True:
                self._answer(peer, await connection.receive())
        except OSError as error:
            peer.warn_of(error)
        except EOFError:
            pass  # it reads no more
        finally:
            self._connected -= 1
            self._leave(peer)

    def _answer(self, peer: "_KvReader", message: KvMessage) -> None:
        match message:
            case Pull():
                if message.read in peer.giving:
                    raise ConnectionError("two reads of one name")
                peer.giving[message.read] = self._loop.start(self._give(peer, message))
            case Waits():
                self._offers.renew(message.request_ids)
            case Taken() | Release():
                self._hear_end(peer, message)
            case Push() | Part() | There():
                answer = peer.pushes.hear(message)
                if answer is not None:
                    self._loop.start(_say(peer.connection, answer))
            case _:
                raise ConnectionError("a message that only this side sends")

    async def _give(self, peer: "_KvReader", pull: Pull) -> None:
        """Answer one read, beside what else its engine says."""
        try:
            await self._give_all(peer, pull)
        except OSError as error:
            peer.warn_of(error)
            peer.connection.close()
        finally:
            peer.giving.pop(pull.read, None)
            peer.over.discard(pull.read)

    async def _give_all(self, peer: "_KvReader", pull: Pull) -> None:
        offer = await self._offer(pull.request_id)
        reason = "it is not held here, or no longer" if offer is None else _misfit(offer, pull)
        if offer is None or reason is not None:
            await peer.connection.send(Gone(read=pull.read, reason=str(reason)))
            return
        if pull.read in peer.over:  # it has waited in vain for numbers
            self._end(peer, pull.request_id)
            return
        self._offers.begin_read(offer)
        self._readers[pull.request_id] = reader = peer, pull.read
        kv = offer.kv or ()
        async with peer.turn:
            for data in numbers_of(kv, first_block=pull.first_block, most_bytes=PART_BYTES):
                if self._readers.get(pull.request_id) != reader:
                    return  # it was lost meanwhile, or has ended
                await peer.connection.send(Part(read=pull.read, data=bytes(data)))
            if self._readers.get(pull.request_id) == reader:
                await peer.connection.send(There(read=pull.read))

    def _end(self, peer: "_KvReader", request_id: str, sent_tokens: int = 0) -> None:
        self._offers.end(request_id, sent_tokens=sent_tokens, to_chips=peer.facts.tp)

    async def _offer(self, request_id: str) -> KvOffer | None:
        """What is held for a request, with its numbers, which the engine may be about to read; None
        too for what another reads.
        """
        try:
            async with asyncio.timeout(self._limits.stall_wall_s):
                while True:
                    news = self._news
                    offer = self._offers.get(request_id)
                    if offer is None or offer.kv is not None:
                        break
                    await news.wait()
        except TimeoutError:
            return None
        return None if offer is None or offer.is_read else offer

    def _hear_end(self, peer: "_KvReader", message: Taken | Release) -> None:
        """End what is held by its reader's word, or, while none reads, by a request's that has no
        need of it. A read that waits for numbers is over when they are there.
        """
        said = None if message.read is None else (peer, message.read)
        if self._readers.get(message.request_id) == said:
            self._readers.pop(message.request_id, None)
            sent_tokens = message.tokens if isinstance(message, Taken) else 0
            self._end(peer, message.request_id, sent_tokens)
        elif message.read in peer.giving:
            peer.over.add(message.read)

    def _tell_loss(self, request_id: str, reason: str) -> None:
        reader = self._readers.pop(request_id, None)
        if reader is not None:
            peer, read = reader
            self._loop.start(_say(peer.connection, Gone(read=read, reason=reason)))
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _leave(self, peer: "_KvReader") -> None:
        peer.connection.close()
        peer.pushes.leave()
        for task in peer.giving.values():
            task.cancel()
        for name in [name for name, (each, _) in self._readers.items() if each is peer]:
            del self._readers[name]
            self._offers.put_back(name)


@dataclass(slots=True, kw_only=True, eq=False)
class _KvReader:
    """An engine that reads here, or pushes: it has its answers one at a time, in `turn`, by the
    tasks `giving` (by read); reads that are `over` had ended before there was anything to give.
    """

    connection: KvConnection
    facts: EngineFacts
    pushes: PushReader
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    giving: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    is_warned_of: bool = False

    def warn_of(self, error: OSError) -> None:
        """Say once why its connection ends, if not by its own close."""
        if self.is_warned_of or isinstance(error, ConnectionResetError | BrokenPipeError):
            return
        self.is_warned_of = True
        host, port = self.facts.host, self.facts.port
        logger.warning("KV port: the engine at %.80s:%d is left: %s", host, port, error)


async def _say(connection: KvConnection, message: Gone | Taken) -> None:
    with contextlib.suppress(OSError):  # it is gone itself
        await connection.send(message)


def _misfit(offer: KvOffer, pull: Pull) -> str | None:
    if pull.tokens > offer.tokens:
        return f"it is of {offer.tokens} tokens, the prompt has {pull.tokens}"
    if pull.prompt != offer.prompt:
        return "it is of another prompt"
    if pull.weights != offer.weights:
        return f"weights {offer.weights} computed it, here are {pull.weights}"
    held = len(offer.blocks)
    if pull.first_block + pull.blocks != held:
        return f"it has {held} blocks, not {pull.first_block} and {pull.blocks}"
    return None


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        field = "PORT" if getattr(error, "errno", None) in _OF_PORT else "HOST"
        expected = f"an address to listen on ({reason})"
        raise ConfigError(f"VLLM_NIXL_SIDE_CHANNEL_{field}", f"{host}:{port}", expected) from error


class _Refusals:
    """Connections that were refused, in the log: at most a line in ten seconds."""

    def __init__(self, loop: KvLoop) -> None:
        self._loop = loop
        self._count, self._reason = 0, ""
        self._is_resting = False

    def add(self, reason: str) -> None:
        """One more (in the loop)."""
        self._count, self._reason = self._count + 1, reason
        if not self._is_resting:
            self._is_resting = True
            self._loop.start(self._tell())

    async def _tell(self) -> None:
        while self._count:
            count, self._count = self._count, 0
            more = "" if count == 1 else f" (and {count - 1} before it, since the last such line)"
            logger.warning("KV port: a connection is refused: %s%s", self._reason, more)
            await asyncio.sleep(_LINE_EVERY_WALL_S)
        self._is_resting = False
