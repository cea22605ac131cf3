"""A connection of two engines that have proved the operator's key to each other.

Who answers greets with a nonce; who asks answers with its own nonce, and says who it is in a packet
that is signed with a key of both; who answers does so too. All packets are signed, and none is
encrypted. A packet is its size [8 bytes, little-endian], its signature [32], and a message.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Final

from serving.engine.remote_kv.limits import PACKET_BYTES_MAX, UNPROVED_BYTES_MAX, KvLimits
from serving.engine.remote_kv.messages import EngineFacts, KvMessage, bytes_of, message_of
from serving.engine.remote_kv.packet_signer import (
    NONCE_BYTES,
    SIGNATURE_BYTES,
    KvSide,
    PacketSigner,
)

_MAGIC: Final = b"ultraserve kv\x02"
_SIZE_BYTES: Final = 8

_CLOSED: Final = "it closed before the key was proved: has it another one?"

_KEPT_ALIVE: Final = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}
"""A host that is gone without a word is found so in half a minute: s, s, times, ms."""


class TooLongMessage(ValueError):
    """A message that the other end would refuse, and with it the connection."""


class KvConnection:
    """Signed messages over a pair of streams, which it owns; any task may send, one receives."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        ours: PacketSigner,
        theirs: PacketSigner,
        stall_wall_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._ours = ours
        self._theirs = theirs
        self._stall_wall_s = stall_wall_s

    @property
    def has_sent(self) -> bool:
        """Whether all that was to be sent is with the system, which sends it after a close too."""
        return self._writer.transport.get_write_buffer_size() == 0

    async def send(self, message: KvMessage, most_bytes: int = PACKET_BYTES_MAX) -> None:
        """Raises OSError where the other end is gone or stalls; then it is closed. Raises
        TooLongMessage, and sends nothing, for a packet of more bytes.
        """
        packet = bytes_of(message)
        if len(packet) > most_bytes:
            raise TooLongMessage(f"a message has {len(packet)} bytes, at most {most_bytes} may go")
        self._writer.write(len(packet).to_bytes(_SIZE_BYTES, "little") + self._ours.sign(packet))
        self._writer.write(packet)
        try:
            async with asyncio.timeout(self._stall_wall_s):
                await self._writer.drain()
        except TimeoutError as error:
            self.close()
            raise TimeoutError("it takes nothing") from error

    async def receive(self, most_bytes: int = PACKET_BYTES_MAX) -> KvMessage:
        """Wait for a message; raises EOFError or OSError at the connection's end, for a packet that
        stalls, is too long or not signed, and for none of ours.
        """
        try:
            head = await self._reader.readexactly(_SIZE_BYTES)
        except asyncio.IncompleteReadError as error:
            raise EOFError("it has closed") from error
        size = int.from_bytes(head, "little")
        if size > most_bytes:
            raise ConnectionError(f"a packet of {size} bytes was announced")
        try:
            async with asyncio.timeout(self._stall_wall_s):
                signature = await self._reader.readexactly(SIGNATURE_BYTES)
                packet = await self._reader.readexactly(size)
        except TimeoutError as error:
            raise TimeoutError("it stalled within a packet") from error
        if not self._theirs.signs(packet, signature):
            raise PermissionError("a packet is not signed with the key")
        return message_of(packet)

    def close(self) -> None:
        """End it at once, also under a task that waits for a message."""
        self._writer.transport.abort()


async def accepted(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    key: bytes,
    facts: EngineFacts,
    limits: KvLimits,
) -> tuple[KvConnection, EngineFacts]:
    """The answering side, and who asks; raises OSError and EOFError, also for a stranger."""
    ours = secrets.token_bytes(NONCE_BYTES)
    async with _proof_of_key(writer, limits):
        writer.write(_MAGIC + ours)
        theirs = await reader.readexactly(NONCE_BYTES)
        connection = KvConnection(
            reader,
            writer,
            ours=PacketSigner(key, KvSide.HOLDER, holder_nonce=ours, reader_nonce=theirs),
            theirs=PacketSigner(key, KvSide.READER, holder_nonce=ours, reader_nonce=theirs),
            stall_wall_s=limits.stall_wall_s,
        )
        other = await _facts_from(connection)
        await connection.send(facts)
    return connection, other


async def connected_to(
    host: str, port: int, *, key: bytes, facts: EngineFacts, limits: KvLimits
) -> tuple[KvConnection, EngineFacts]:
    """The asking side, and who answers; raises OSError and EOFError, also for a stranger."""
    try:
        async with asyncio.timeout(limits.handshake_wall_s):
            reader, writer = await asyncio.open_connection(host, port, limit=PACKET_BYTES_MAX)
    except TimeoutError as error:
        words = f"it did not accept a connection in {limits.handshake_wall_s:g} s"
        raise TimeoutError(words) from error
    ours = secrets.token_bytes(NONCE_BYTES)
    async with _proof_of_key(writer, limits):
        greeting = await reader.readexactly(len(_MAGIC) + NONCE_BYTES)
        if not greeting.startswith(_MAGIC):
            raise ConnectionError("no engine of ours is there")
        theirs = greeting[len(_MAGIC) :]
        connection = KvConnection(
            reader,
            writer,
            ours=PacketSigner(key, KvSide.READER, holder_nonce=theirs, reader_nonce=ours),
            theirs=PacketSigner(key, KvSide.HOLDER, holder_nonce=theirs, reader_nonce=ours),
            stall_wall_s=limits.stall_wall_s,
        )
        writer.write(ours)
        await connection.send(facts)
        other = await _facts_from(connection)
    return connection, other


@contextlib.asynccontextmanager
async def _proof_of_key(writer: asyncio.StreamWriter, limits: KvLimits) -> AsyncIterator[None]:
    """One deadline for all of a proof; a connection without one is closed."""
    connected = writer.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEPT_ALIVE.items():
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        async with asyncio.timeout(limits.handshake_wall_s):
            yield
    except BaseException as error:
        writer.transport.abort()
        if isinstance(error, TimeoutError):
            words = f"no key was proved in {limits.handshake_wall_s:g} s"
            raise TimeoutError(words) from error
        if isinstance(error, EOFError | ConnectionResetError):
            raise ConnectionError(_CLOSED) from error
        raise


async def _facts_from(connection: KvConnection) -> EngineFacts:
    try:
        facts = await connection.receive(UNPROVED_BYTES_MAX)
    except PermissionError as error:
        raise PermissionError("a stranger does not know the key") from error
    if not isinstance(facts, EngineFacts):
        raise ConnectionError("an engine says first who it is")
    return facts
