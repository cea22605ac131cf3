"""A port in front of a gRPC server, which listens on a socket that only this user reaches.

TLS ends at the port. What speaks HTTP/1 goes to a protocol of this process, where there is one.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from serving.access.free_port import check_port
from serving.access.renewed_context import RenewedContext
from serving.access.tls_files import TlsFiles
from serving.errors import PortInUse
from serving.server.connections.first_bytes import Speech
from serving.server.connections.grpc_socket import GrpcSocket
from serving.server.connections.named_connections import NamedConnections
from serving.server.connections.private_socket import private_socket
from serving.server.connections.shared_port import PortLimits, SharedPort


class GrpcServer(Protocol):
    """What of `grpc.aio.Server` is needed."""

    def add_insecure_port(self, address: str) -> int:
        """Listen there too, once it is started."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self, grace: float | None) -> Any:
        """End; calls that are at work have so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """Where to listen; `name` is the port's in the log, the fields are the flags that set it."""

    name: str
    host: str
    port: int
    field: str
    host_field: str = "host"


class GrpcPort:
    """One port, from `start` to `stop`, which also start and stop `server`; `names` has its
    connections.

    `start` raises PortInUse when another program listens there, ConfigError for an address that is
    not this machine's and for wrong TLS files.
    """

    def __init__(
        self,
        server: GrpcServer,
        address: PortAddress,
        *,
        names: NamedConnections | None,
        tls: TlsFiles | None,
        limits: PortLimits | None,
    ) -> None:
        self._server = server
        self._address = address
        self._names = names
        self._tls = tls
        self._limits = limits
        self._shared: SharedPort | None = None
        self._held = ExitStack()

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return 0 if self._shared is None else self._shared.connections

    async def start(
        self,
        *,
        http: Callable[[], asyncio.Protocol] | None = None,
        is_at_work: Callable[[asyncio.BaseTransport], bool] = lambda _: False,
    ) -> Path:
        """Listen; returns the server's own socket. For `http` and `is_at_work` see SharedPort."""
        address, tls = self._address, None
        if self._tls is not None:
            protocols = (Speech.HTTP_2,) if http is None else (Speech.HTTP_1, Speech.HTTP_2)
            tls = RenewedContext(self._tls, protocols=protocols, port=address.name)
        path = self._held.enter_context(private_socket(os.environ))
        shared = SharedPort(
            name=address.name,
            http=http,
            is_at_work=is_at_work,
            grpc_socket=GrpcSocket(path, self._names),
            tls=tls,
            limits=self._limits,
        )
        try:
            shared.listen(address.host, address.port)
        except OSError as error:
            self._held.close()
            host, port, field = address.host, address.port, address.field
            check_port(host, port, field=field, host_field=address.host_field)
            raise PortInUse(host, port, field=field) from error
        self._shared = shared
        self._server.add_insecure_port(f"unix:{path}")
        await self._server.start()
        await shared.start()
        return path

    async def close(self) -> None:
        """Accept no more connections; open ones stay. Idempotent."""
        if self._shared is not None:
            await self._shared.close()

    async def stop(self, grace_s: float) -> None:
        """End; calls that are at work have `grace_s`. Idempotent."""
        await self.close()
        await self._server.stop(grace_s)
        if self._shared is not None:
            await self._shared.ended()
            await self._shared.stop()
        self._held.close()
