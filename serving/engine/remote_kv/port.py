"""The port at which an engine gives out keys and values: a reader does not wait for the end of a
step.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from typing import Final

from emulator.errors import ConfigError
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
    Release,
    Taken,
    There,
    Waits,
)
from serving.engine.remote_kv.offers import KvOffer, KvOffers

_OF_PORT: Final = (errno.EADDRINUSE, errno.EACCES)

_Reader = tuple[KvConnection, str]
"""A reader's connection, and its name for the read."""

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
        limits: KvLimits,
    ) -> None:
        self._loop = loop
        self._key = key
        self._facts = facts
        self._offers = offers
        self._limits = limits
        self._readers: dict[str, _Reader] = {}  # by request
        self._connected = 0
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
            logger.warning("KV port: a connection is refused: %s", error)
            return
        finally:
            self._unproved.pop(task, None)
        self._connected += 1
        try:
            if self._connected > self._limits.readers_max:
                logger.warning("KV port: an engine beyond %d is refused", self._limits.readers_max)
                return
            while True:
                await self._answer(connection, await connection.receive(), other)
        except (OSError, EOFError):
            pass  # it reads no more
        finally:
            self._connected -= 1
            self._leave(connection)

    async def _answer(
        self, connection: KvConnection, message: KvMessage, other: EngineFacts
    ) -> None:
        match message:
            case Pull():
                await self._give(connection, message)
            case Waits():
                self._offers.renew(message.request_ids)
            case Taken() | Release():
                if not self._ends(connection, message):
                    return
                sent_tokens = message.tokens if isinstance(message, Taken) else 0
                self._offers.end(message.request_id, sent_tokens=sent_tokens, to_chips=other.tp)
            case _:
                raise ConnectionError("a message that only this side sends")

    async def _give(self, connection: KvConnection, pull: Pull) -> None:
        offer = await self._offer(pull.request_id)
        reason = "it is not held here, or no longer" if offer is None else _misfit(offer, pull)
        if offer is None or reason is not None:
            await connection.send(Gone(read=pull.read, reason=str(reason)))
            return
        self._offers.begin_read(offer)
        self._readers[pull.request_id] = reader = connection, pull.read
        for data in numbers_of(offer.kv or (), first_block=pull.first_block, most_bytes=PART_BYTES):
            await connection.send(Part(read=pull.read, data=bytes(data)))
            if self._readers.get(pull.request_id) != reader:
                return  # it was lost meanwhile
        await connection.send(There(read=pull.read))

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

    def _ends(self, connection: KvConnection, message: Taken | Release) -> bool:
        """Whether it ends what is held: its reader's word, or, while none reads, a request's that
        has no need of it.
        """
        said = None if message.read is None else (connection, message.read)
        if self._readers.get(message.request_id) != said:
            return False
        self._readers.pop(message.request_id, None)
        return True

    def _tell_loss(self, request_id: str, reason: str) -> None:
        reader = self._readers.pop(request_id, None)
        if reader is not None:
            connection, read = reader
            self._loop.start(_say_gone(connection, Gone(read=read, reason=reason)))
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _leave(self, connection: KvConnection) -> None:
        connection.close()
        for name in [name for name, (each, _) in self._readers.items() if each is connection]:
            del self._readers[name]
            self._offers.put_back(name)


async def _say_gone(connection: KvConnection, gone: Gone) -> None:
    with contextlib.suppress(OSError):  # it is gone itself
        await connection.send(gone)


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
