"""One listening port for two servers: gRPC behind a socket of its own, and HTTP in this process.

Connections are counted from their acceptance on, so that a TLS handshake that never ends is one. A
port that waits for many to say anything cuts off who has been silent for longest, and so does one
with many of HTTP for whom nothing is at work, or with many of gRPC that have shown no key. So who
has no key keeps nobody out who has one; a port that is full all the same closes what comes then.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from serving.access.renewed_context import RenewedContext
from serving.server.connections.arrival import HEAD_WAIT_S, Arrival
from serving.server.connections.first_bytes import Speech
from serving.server.connections.grpc_socket import GrpcSocket

# Below "vllm", where the API's process has configured handlers; a name of our own prints nothing.
logger = logging.getLogger(f"vllm.{__name__}")

_BACKLOG: Final = 512
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_WILDCARDS: Final = ("0.0.0.0", "::")
_READ_BYTES: Final = 64 * 2**10
"""At once, of a connection; one buffer for all of them."""

_ENDING_WALL_S: Final = 1.0
"""For what is on its way to clients when the server has ended."""

_ENDING_LOOK_S: Final = 0.01

_ACCEPT_PAUSE_S: Final = 1.0
"""After a failed accept, as asyncio's own servers: the process has no descriptor left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Connections at a time, of all kinds, of HTTP/1, of gRPC without a key, and of those that have
    yet to say anything.

    Raises ConfigError for fewer than one.
    """

    connections: int = 1_000
    http: int = 256
    strangers: int = 512
    silent: int = 256
    head_wait_s: float = HEAD_WAIT_S

    def __post_init__(self) -> None:
        for field in ("connections", "http", "strangers", "silent"):
            if getattr(self, field) < 1:
                raise ConfigError(field=field, value=getattr(self, field), expected="at least 1")
        if not 0 < self.head_wait_s < float("inf"):
            raise ConfigError(field="head_wait_s", value=self.head_wait_s, expected="above 0 s")


class SharedPort:
    """The port, from `listen` and `start` to `stop`, all in one loop.

    `http` makes the protocol of a connection of HTTP/1, `is_at_work` says whether it has a request
    that is worth keeping it for; without `http` such a connection ends. HTTP/2 goes on to
    `grpc_socket`. `name` is the port's in the log.
    """

    def __init__(
        self,
        *,
        name: str,
        http: Callable[[], asyncio.Protocol] | None,
        grpc_socket: GrpcSocket,
        is_at_work: Callable[[asyncio.BaseTransport], bool] = lambda _: False,
        tls: RenewedContext | None = None,
        limits: PortLimits | None = None,
    ) -> None:
        self._name = name
        self._http = http
        self._is_at_work = is_at_work
        self._grpc_socket = grpc_socket
        self._tls = tls
        self._limits = limits or PortLimits()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        # In the order in which they came; with their greeting until they are connections.
        self._silent: dict[Arrival, asyncio.Task[None] | None] = {}
        self._decided: dict[Arrival, None] = {}  # in the order in which they spoke
        self._told_full = False
        self._buffer = memoryview(bytearray(_READ_BYTES))

    @property
    def connections(self) -> int:
        """That are open now."""
        return len(self._silent) + len(self._decided)

    def listen(self, host: str, port: int) -> None:
        """Take the port; who connects waits until `start`. Raises OSError."""
        self._listening = listening_sockets(host, port)

    async def start(self) -> None:
        """Let them in."""
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(each)) for each in self._listening]

    async def close(self) -> None:
        """Accept nobody any more; who is there stays. Idempotent."""
        accepting, self._accepting = self._accepting, []
        for task in accepting:
            task.cancel()
        for task in accepting:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for listening in self._listening:
            listening.close()

    async def ended(self) -> None:
        """Wait until the last words of a gRPC server that has ended are with its clients."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_WALL_S):
                while any(each.speech is Speech.HTTP_2 for each in self._decided):
                    await asyncio.sleep(_ENDING_LOOK_S)

    async def stop(self) -> None:
        """End all that is left; idempotent."""
        await self.close()
        tasks = [task for task in self._silent.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for arrival in (*self._silent, *self._decided):
            arrival.abort()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except ConnectionError:  # it went before it was taken
                continue
            except OSError as error:
                logger.warning("%s accepts nobody for a moment: %s", self._name, error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        if self.connections >= self._limits.connections and not self._made_room():
            if not self._told_full:
                most = self._limits.connections
                logger.warning("%s has %d connections, and takes no more", self._name, most)
            self._told_full = True
            connection.close()
            return
        self._told_full = False
        if len(self._silent) >= self._limits.silent:
            self._cut_off_longest_silent()
        arrival = Arrival(
            grpc_socket=self._grpc_socket,
            http=None if self._http is None else self._http_if_room,
            head_wait_s=self._limits.head_wait_s,
            books=self,
            buffer=self._buffer,
        )
        greeting = asyncio.get_running_loop().create_task(self._greet(connection, arrival))
        # One that is cut off may never have begun.
        greeting.add_done_callback(lambda done: connection.close() if done.cancelled() else None)
        self._silent[arrival] = greeting

    def _cut_off_longest_silent(self) -> None:
        arrival = next(iter(self._silent))
        greeting = self._silent.pop(arrival)
        if greeting is None:
            arrival.abort()
        else:
            greeting.cancel()

    async def _greet(self, connection: socket.socket, arrival: Arrival) -> None:
        """Make a connection of it, with TLS where there is any; who fails at that is gone."""
        loop = asyncio.get_running_loop()
        try:
            connection.setblocking(False)
            tls = None if self._tls is None else self._tls.present()
            wait_s = None if tls is None else self._limits.head_wait_s
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                lambda: arrival, connection, ssl=tls, ssl_handshake_timeout=wait_s
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are
            logger.debug("a connection of %s failed: %s", self._name, error)
            connection.close()
        except Exception:
            logger.exception("%s could not greet a connection", self._name)
            connection.close()
        finally:
            if self._silent.get(arrival) is not None:  # it never became a connection
                del self._silent[arrival]

    def came(self, arrival: Arrival) -> None:
        """It has said nothing yet."""
        self._silent[arrival] = None  # in the place that it has

    def decided(self, arrival: Arrival) -> None:
        """It is known what it speaks."""
        self._silent.pop(arrival, None)
        self._decided[arrival] = None
        if arrival.is_stranger:
            self._make_room_for_stranger()

    def went(self, arrival: Arrival) -> None:
        """It is over."""
        self._silent.pop(arrival, None)
        self._decided.pop(arrival, None)

    def _made_room(self) -> bool:
        """Cut off one that has yet to say anything, or has shown no key; whether there was one."""
        if self._silent:
            self._cut_off_longest_silent()
            return True
        if strangers := self._strangers():
            self._cut_off_one(strangers)
        return bool(strangers)

    def _make_room_for_stranger(self) -> None:
        """Cut off one of them where there are too many."""
        if len(strangers := self._strangers()) > self._limits.strangers:
            self._cut_off_one(strangers)

    def _strangers(self) -> list[Arrival]:
        return [each for each in self._decided if each.is_stranger]

    def _cut_off_one(self, strangers: list[Arrival]) -> None:
        """The one that has said nothing for longest; those that wait for a turn are not read."""
        longest = min(strangers, key=lambda each: (each.waits_for_turn, each.heard_s))
        del self._decided[longest]
        longest.abort()

    def _http_if_room(self) -> asyncio.Protocol | None:
        """A protocol for who has come last; None when all others are worth keeping."""
        *before, _ = [each for each in self._decided if each.speech is Speech.HTTP_1]
        if len(before) >= self._limits.http:
            idle = [each for each in before if not self._works(each)]
            if not idle:
                return None
            longest = min(idle, key=lambda each: each.heard_s)
            del self._decided[longest]
            longest.abort()
        assert self._http is not None
        return self._http()

    def _works(self, arrival: Arrival) -> bool:
        return arrival.transport is not None and self._is_at_work(arrival.transport)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at each address of `host` that this machine has.

    A wildcard of either family is both families, as gRPC has it. Raises OSError when one address is
    taken, or none is this machine's.
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
    address: tuple[object, ...], family: socket.AddressFamily, *, dualstack: bool = False
) -> socket.socket:
    made = socket.create_server(
        address,
        family=family,
        backlog=_BACKLOG,
        dualstack_ipv6=dualstack,
    )
    made.setblocking(False)
    return made
