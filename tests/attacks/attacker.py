"""The means of an attack: connections, bytes and CPU time within its budget.

An attacking process is nice (NICENESS), and sleeps beyond its share of a core: then the server, not
competition for cores, slows the honest client down.
"""

import asyncio
import contextlib
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tests.attacks.answers import Answers
from tests.attacks.attack import Attack
from tests.attacks.target import HOST, Target

CPU_SHARE_MAX: Final = 0.5
"""Of one core, user and kernel time."""

NICENESS: Final = 19
_PIECE_BYTES: Final = 256 * 1024
_ANSWER_BYTES_MAX: Final = 4_000_000
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


class BudgetSpent(Exception):
    """The attack's budget is spent."""


class Attacker:
    def __init__(self, attack: Attack, target: Target, *, seed: int) -> None:
        self.target = target
        self.budget = attack.budget
        self.answers = Answers()
        self.random = random.Random(f"{seed}:{attack.name}")
        self.sent_bytes = 0
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._began_s = time.monotonic()
        self._began_cpu_s = time.process_time()

    async def connect(
        self,
        port: int,
        *,
        protocols: tuple[str, ...] = ("http/1.1",),
        plain: bool = False,
        receive_buffer_bytes: int = 0,
    ) -> "Wire":
        """Open a connection, over TLS where the server has it, unless `plain`.

        Raises BudgetSpent, and OSError where the server refuses it.
        """
        if self.connections >= self.budget.connections:
            raise BudgetSpent
        if self.connections == 0:  # what it took to make a body is not paced
            self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        self.connections += 1
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
            local = (self.target.control_port, self.target.console_port)
            tls = None if plain or port in local else self.target.tls(*protocols)
            reader, writer = await asyncio.open_connection(
                sock=sock,
                ssl=tls,
                server_hostname=HOST if tls else None,
                limit=receive_buffer_bytes or 2**16,
            )
        except BaseException:
            sock.close()
            raise
        self._open.add(writer)
        return Wire(self, reader, writer)

    async def spend(self, size_bytes: int) -> None:
        """Count bytes before they are sent, and pace them; raises BudgetSpent."""
        if self.sent_bytes + size_bytes > self.budget.sent_bytes:
            raise BudgetSpent
        self.sent_bytes += size_bytes
        while (ahead_s := self._ahead_s()) > 0:
            await asyncio.sleep(min(ahead_s, 0.5))  # paces what is sent

    def _ahead_s(self) -> float:
        elapsed_s = time.monotonic() - self._began_s
        used_s = time.process_time() - self._began_cpu_s
        due_s = max(self.sent_bytes / self.budget.bytes_per_s, used_s / CPU_SHARE_MAX)
        return due_s - elapsed_s - 0.02  # a burst of that length is allowed

    async def crowd(self, count: int, one: "Callable[[], Awaitable[None]]") -> None:
        """Run `count` copies of `one` concurrently; counts connections closed by the server."""

        async def counted() -> None:
            try:
                await one()
            except BudgetSpent:
                pass
            except (OSError, EOFError):
                self.answers.closed()

        await asyncio.gather(*(counted() for _ in range(count)))

    async def again(self, one: "Callable[[], Awaitable[None]]", *, pause_s: float = 0.05) -> None:
        """Repeat `one` until the budget or time is spent."""
        while True:
            try:
                await one()
            except (OSError, EOFError):
                self.answers.closed()
            await asyncio.sleep(pause_s)  # a client that is refused at once keeps no core

    def has_closed(self, writer: asyncio.StreamWriter) -> bool:
        return writer not in self._open

    def forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)

    def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


class Wire:
    """One connection with counted bytes."""

    def __init__(
        self, attacker: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.attacker = attacker
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send all, within the budget; raises OSError after the server has closed."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            await self.attacker.spend(len(piece))
            if self.writer.is_closing():
                raise ConnectionResetError
            self.writer.write(piece)
            await self.writer.drain()

    async def answer(
        self, *, wait_s: float = 2.0, is_probe: bool = False, is_head: bool = False
    ) -> int | None:
        """Read and count one HTTP/1 answer; None if it is late.

        An end of the connection counts as closed, and returns None too.
        """
        try:
            async with asyncio.timeout(wait_s):
                status, body = await self._read_answer(is_head=is_head)
        except TimeoutError:
            self.attacker.answers.by_status["no answer"] += 1
            return None
        except (OSError, EOFError, ValueError):
            self.attacker.answers.closed()
            return None
        self.attacker.answers.http(status, body, is_probe=is_probe)
        return status

    async def _read_answer(self, *, is_head: bool) -> tuple[int, bytes]:
        status = 100
        while status == 100:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status = int(head.split(None, 2)[1])
        lower = head.lower()
        if is_head or status in {204, 304}:
            return status, b""
        if b"\r\ntransfer-encoding: chunked" in lower:
            return status, await self._read_chunks()
        length = lower.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0].strip()
        if not length:
            return status, await self.reader.read(_ANSWER_BYTES_MAX)
        return status, await self.reader.readexactly(min(int(length), _ANSWER_BYTES_MAX))

    async def _read_chunks(self) -> bytes:
        body = b""
        while len(body) < _ANSWER_BYTES_MAX:
            size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
            chunk = await self.reader.readexactly(size + 2)
            if size == 0:
                return body
            body += chunk[:-2]
        return body

    def half_close(self) -> None:
        """End our direction, and stay connected."""
        with contextlib.suppress(OSError):
            self.writer.write_eof()

    def reset(self) -> None:
        """Close with a RST."""
        sock = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.close()

    def close(self) -> None:
        self.writer.transport.abort()
        self.attacker.forget(self.writer)


async def attacked(attack: Attack, target: Target, *, seed: int) -> Answers:
    """Attack until the budget is spent, then close every connection."""
    attacker = Attacker(attack, target, seed=seed)
    try:
        async with asyncio.timeout(attack.budget.wall_s):
            await attack.run(attacker)
    except (TimeoutError, BudgetSpent):
        pass
    except (OSError, EOFError):
        attacker.answers.closed()
    finally:
        attacker.close()
    return attacker.answers
