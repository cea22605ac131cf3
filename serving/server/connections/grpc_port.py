"""A port in front of a gRPC server on a private socket; TLS ends here.

An HTTP/1 client gets one answer that names gRPC.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from serving.access.listen_address import check_port
from serving.access.renewed_context import RenewedContext
from serving.access.tls_files import TlsFiles
from serving.errors import PortInUse
from serving.server.connections.client_connection import ClientConnection
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_relay import GrpcConnection, GrpcSocket, NamedConnections
from serving.server.connections.listening_port import ListeningPort
from serving.server.connections.private_socket import private_socket


class GrpcServer(Protocol):
    """The part of `grpc.aio.Server` that a port uses."""

    def add_insecure_port(self, address: str) -> int:
        """Add an address to listen on."""

    async def start(self) -> None:
        """Start."""

    async def stop(self, grace: float | None) -> Any:
        """End; calls in progress have `grace` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """An address to listen on; `name` is for the log, the fields are its flags."""

    name: str
    host: str
    port: int
    field: str
    host_field: str = "host"

    def open(
        self,
        make: Callable[..., ClientConnection],
        *,
        protocol: str,
        tls: TlsFiles | None,
        limits: PortLimits | None,
    ) -> ListeningPort:
        """A port that listens there, not started; TLS offers `protocol` alone. Raises PortInUse, or
        ConfigError for an address that is not this machine's, or wrong TLS files.
        """
        context = (
            None if tls is None else RenewedContext(tls, protocols=(protocol,), port=self.name)
        )
        port = ListeningPort(make, name=self.name, tls=context, limits=limits)
        try:
            port.listen(self.host, self.port)
        except OSError as error:
            check_port(self.host, self.port, field=self.field, host_field=self.host_field)
            raise PortInUse(self.host, self.port, field=self.field) from error
        return port


class GrpcPort:
    """One port; `start` and `stop` also start and stop `server`.

    `hint` tells an HTTP/1 client where HTTP is served. `start` raises as `PortAddress.open`.
    """

    def __init__(
        self,
        server: GrpcServer,
        address: PortAddress,
        *,
        names: NamedConnections | None,
        tls: TlsFiles | None,
        limits: PortLimits | None,
        hint: str,
    ) -> None:
        self._server = server
        self._address = address
        self._names = names
        self._tls = tls
        self._limits = limits
        self._refusal = _refusal(f"{address.name} speaks gRPC (HTTP/2) alone: {hint}\n")
        self._port: ListeningPort | None = None
        self._held = ExitStack()

    @property
    def connections(self) -> int:
        """Open connections."""
        return 0 if self._port is None else self._port.connections

    async def start(self) -> Path:
        """Listen; returns the server's own socket."""
        path = self._held.enter_context(private_socket(os.environ))
        make = partial(GrpcConnection, GrpcSocket(path, self._names), self._refusal)
        try:
            port = self._address.open(make, protocol="h2", tls=self._tls, limits=self._limits)
        except Exception:
            self._held.close()
            raise
        self._port = port
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        await port.start()
        return path

    async def close(self) -> None:
        """Accept no more connections; open ones stay. Idempotent."""
        if self._port is not None:
            await self._port.close()

    async def stop(self, grace_s: float) -> None:
        """End; calls in progress have `grace_s`. Idempotent."""
        await self.close()
        await self._server.stop(grace_s)
        if self._port is not None:
            await self._port.ended()
            await self._port.stop()
        self._held.close()


def _refusal(text: str) -> bytes:
    head = (
        "HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text.encode())}\r\n\r\n"
    )
    return (head + text).encode()
