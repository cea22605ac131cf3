"""A listening port whose connections are counted, bounded and, with TLS, decrypted here.

They count from acceptance, so that unfinished TLS handshakes do too.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from serving.access.renewed_context import RenewedContext
from serving.server.connections.client_connection import ClientConnection
from serving.server.connections.connection_registry import ConnectionRegistry, PortLimits

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_BACKLOG: Final = 512
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_WILDCARDS: Final = ("0.0.0.0", "::")
_READ_BYTES: Final = 64 * 2**10
"""One read buffer for all connections."""

_ENDING_WALL_S: Final = 1.0
"""For the last bytes to clients of an ended server."""

_ENDING_POLL_S: Final = 0.01

_ACCEPT_PAUSE_S: Final = 1.0
"""After a failed accept, as in asyncio: out of descriptors."""


class ListeningPort:
    """The port, from `listen` and `start` to `stop`, in one loop; `name` is for the log.

    `make` takes the arguments of `ClientConnection`.
    """

    def __init__(
        self,
        make: Callable[..., ClientConnection],
        *,
        name: str,
        tls: RenewedContext | None = None,
        limits: PortLimits | None = None,
    ) -> None:
        self._make = make
        self._name = name
        self._tls = tls
        self._limits = limits or PortLimits()
        self._registry = ConnectionRegistry(self._limits)
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greetings: set[asyncio.Task[None]] = set()
        self._was_full = False
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._registry.open)

    def listen(self, host: str, port: int) -> None:
        """Bind; clients that connect wait until `start`. Raises OSError."""
        self._listening = listening_sockets(host, port)

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(each)) for each in self._listening]

    async def close(self) -> None:
        """Accept no more connections; open ones stay. Idempotent."""
        accepting, self._accepting = self._accepting, []
        for task in accepting:
            task.cancel()
        for task in accepting:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for listening in self._listening:
            listening.close()

    async def ended(self) -> None:
        """Wait until an ended server's clients have the last bytes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_WALL_S):
                while self._registry.spoken:
                    await asyncio.sleep(_ENDING_POLL_S)

    async def stop(self) -> None:
        """Cut off all connections; idempotent."""
        await self.close()
        for connection in self._registry.open:
            connection.abort()
        await asyncio.gather(*self._greetings, return_exceptions=True)
        for connection in self._registry.open:  # whose greeting had just ended
            connection.abort()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionError:  # it went before it was taken
                continue
            except OSError as error:
                logger.warning("%s accepts no connection for a moment: %s", self._name, error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        connection = self._make(
            registry=self._registry, head_wait_s=self._limits.head_wait_s, buffer=self._buffer
        )
        is_full = not self._registry.admit(connection)
        if is_full and not self._was_full:
            most = self._limits.connections
            logger.warning("%s has %d connections, and takes no more", self._name, most)
        self._was_full = is_full
        if is_full:
            accepted.close()
            return
        greeting = asyncio.get_running_loop().create_task(self._greet(accepted, connection))
        connection.greeting = greeting
        self._greetings.add(greeting)

        def greeted(done: asyncio.Task[None]) -> None:
            self._greetings.discard(done)
            if done.cancelled():  # perhaps before it began
                accepted.close()
                self._registry.remove(connection)

        greeting.add_done_callback(greeted)

    async def _greet(self, accepted: socket.socket, connection: ClientConnection) -> None:
        """Give it its transport, after any TLS handshake; removes it on failure."""
        try:
            accepted.setblocking(False)
            tls = None if self._tls is None else self._tls.present()
            wait_s = None if tls is None else self._limits.head_wait_s
            if accepted.family in (socket.AF_INET, socket.AF_INET6):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, ssl_handshake_timeout=wait_s
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are
            logger.debug("a connection of %s failed: %s", self._name, error)
            accepted.close()
            self._registry.remove(connection)
        except Exception:
            logger.exception("%s could not greet a connection", self._name)
            accepted.close()
            self._registry.remove(connection)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at each of this machine's addresses of `host`.

    A wildcard of either family is both, as in gRPC. Raises OSError when one is in use or none is
    local.
    """
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        return [_nonblocking(("::", port), socket.AF_INET6, dualstack=True)]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                made.append(_nonblocking(address, family))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
    except OSError:
        for each in made:
            each.close()
        raise
    if not made and absent is not None:
        raise absent
    return made


def _nonblocking(
    address: Any, family: socket.AddressFamily, *, dualstack: bool = False
) -> socket.socket:
    made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack)
    made.setblocking(False)
    return made
