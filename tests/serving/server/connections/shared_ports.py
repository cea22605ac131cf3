"""A shared port before two servers that say which of them they are, and clients of bytes."""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Set
from pathlib import Path

from serving.access.renewed_context import RenewedContext
from serving.server.connections.grpc_socket import GrpcSocket
from serving.server.connections.named_connections import NamedConnections
from serving.server.connections.shared_port import PortLimits, SharedPort
from tests.serving.server.control.small_engine import free_port

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def framed(payload: bytes) -> bytes:
    """`payload` as frames of DATA, of a stream that never began."""
    pieces = (payload[at : at + 16_384] for at in range(0, len(payload), 16_384))
    return b"".join(
        len(piece).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + piece for piece in pieces
    )


class Echo(asyncio.Protocol):
    """Says its name at once, as HTTP/2's servers may, then all that it is told; ends when told to.

    `heard` is all that it was told, `ended` how often a client was done.
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
    """A port that runs; `echoes` are the protocols that were made of its connections."""

    def __init__(self, shared: SharedPort, number: int, echoes: list[Echo]) -> None:
        self.shared = shared
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
async def a_port(
    *,
    limits: PortLimits | None = None,
    tls: RenewedContext | None = None,
    grpc: Callable[[], asyncio.Protocol] | None = None,
    at_work: Set[bytes] = frozenset(),
    names: NamedConnections | None = None,
) -> AsyncIterator[Port]:
    """A shared port on loopback before two echoes, `h2` and `http`.

    At work for HTTP's clients are echoes that have heard one of `at_work`.
    """
    echoes: list[Echo] = []

    def echo(name: bytes) -> Echo:
        echoes.append(Echo(name))
        return echoes[-1]

    def is_at_work(transport: asyncio.BaseTransport) -> bool:
        return any(each.transport is transport and each.heard in at_work for each in echoes)

    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "grpc.sock"
        server = await loop.create_unix_server(grpc or (lambda: echo(b"h2:")), str(path))
        shared = SharedPort(
            name="the port",
            http=lambda: echo(b"http:"),
            is_at_work=is_at_work,
            grpc_socket=GrpcSocket(path, names),
            tls=tls,
            limits=limits,
        )
        number = free_port()
        shared.listen("127.0.0.1", number)
        await shared.start()
        try:
            yield Port(shared, number, echoes)
        finally:
            await shared.stop()
            server.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the port is about to do."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
