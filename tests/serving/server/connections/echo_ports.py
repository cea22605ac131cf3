"""A port of each kind before a server that names it, and raw clients."""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Set
from functools import partial
from pathlib import Path

from serving.access.renewed_context import RenewedContext
from serving.server.connections.client_connection import HttpConnection
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_relay import GrpcConnection, GrpcSocket, NamedConnections
from serving.server.connections.listening_port import ListeningPort
from tests.e2e.server_process import free_port

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REFUSAL = b"HTTP/1.1 505 no\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def framed(payload: bytes) -> bytes:
    """`payload` as DATA frames of a stream that never began."""
    pieces = (payload[at : at + 16_384] for at in range(0, len(payload), 16_384))
    return b"".join(
        len(piece).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + piece for piece in pieces
    )


class Echo(asyncio.Protocol):
    """Sends its name at once, as HTTP/2 servers may, then echoes; ends on command.

    `heard` is all input, `ended` the number of ends.
    """

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.heard = b""
        self.ended = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(self.name)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.transport.write(data)
        if self.heard.endswith(b"go away"):
            self.transport.close()

    def eof_received(self) -> bool:
        self.ended += 1
        self.transport.write(b"bye")
        self.transport.close()
        return True


class Port:
    """A running port; `echoes` are its connections' protocols."""

    def __init__(self, listening: ListeningPort, number: int, echoes: list[Echo]) -> None:
        self.listening = listening
        self.number = number
        self.echoes = echoes

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if tls is None else "127.0.0.1"
        return await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=tls, server_hostname=name
        )


@contextlib.asynccontextmanager
async def an_http_port(
    *,
    limits: PortLimits | None = None,
    tls: RenewedContext | None = None,
    at_work: Set[bytes] = frozenset(),
) -> AsyncIterator[Port]:
    """An HTTP port on loopback, with echoes; those that heard one of `at_work` are at work."""
    echoes: list[Echo] = []

    def echo() -> Echo:
        echoes.append(Echo(b"http:"))
        return echoes[-1]

    def is_at_work(transport: asyncio.BaseTransport) -> bool:
        return any(each.transport is transport and each.heard in at_work for each in echoes)

    make = partial(HttpConnection, echo, is_at_work)
    async with _started(ListeningPort(make, name="the port", tls=tls, limits=limits)) as number:
        yield Port(*number, echoes)


@contextlib.asynccontextmanager
async def _started(port: ListeningPort) -> AsyncIterator[tuple[ListeningPort, int]]:
    number = free_port()
    port.listen("127.0.0.1", number)
    await port.start()
    try:
        yield port, number
    finally:
        await port.stop()


@contextlib.asynccontextmanager
async def a_port(
    *,
    limits: PortLimits | None = None,
    tls: RenewedContext | None = None,
    grpc: Callable[[], asyncio.Protocol] | None = None,
    names: NamedConnections | None = None,
) -> AsyncIterator[Port]:
    """A gRPC port on loopback before an echo, `h2`."""
    echoes: list[Echo] = []

    def echo() -> Echo:
        echoes.append(Echo(b"h2:"))
        return echoes[-1]

    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "grpc.sock"
        server = await loop.create_unix_server(grpc or echo, str(path))
        make = partial(GrpcConnection, GrpcSocket(path, names), REFUSAL)
        port = ListeningPort(make, name="the port", tls=tls, limits=limits)
        try:
            async with _started(port) as number:
                yield Port(*number, echoes)
        finally:
            server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
