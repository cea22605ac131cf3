"""Request heads that are endless, slow, or too many."""

import asyncio
import contextlib
from functools import partial

from tests.attacks.attack import Attack, Budget
from tests.attacks.attacker import Attacker
from tests.attacks.http1 import COMPLETIONS, head

ONE_CLIENT = Budget(connections=60)
FAST_CLIENT = Budget(connections=60, sent_bytes=300_000_000, bytes_per_s=100_000_000)
CROWD = Budget(connections=300, sent_bytes=4_000_000)


async def endless(
    attacker: Attacker, *, first: bytes, piece: bytes, port: str = "http_port"
) -> None:
    """Send `first`, then `piece` for ever; reconnect when closed."""

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port))
        try:
            await wire.send(first)
            while not wire.reader.at_eof():
                await wire.send(piece)
                await asyncio.sleep(0)
            await wire.answer()
        finally:
            wire.close()

    await attacker.again(one)


async def slow_headers(attacker: Attacker, *, count: int = 250, port: str = "http_port") -> None:
    """A byte of a head every half second, on many connections."""

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port))
        for byte in head("GET", "/livez", "x-long: " + "a" * 100):
            await wire.send(bytes((byte,)))
            await asyncio.sleep(0.5)

    await attacker.crowd(count, one)


async def silent(attacker: Attacker, *, count: int = 250, port: str = "http_port") -> None:
    """Silent connections."""

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port), plain=True)
        await wire.reader.read()

    await attacker.crowd(count, one)


async def half_open(attacker: Attacker) -> None:
    """Half a head, then the end of our direction, on an open connection."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        await wire.send(b"GET /livez HTTP/1.1\r\nhost: a\r\nx-")
        wire.half_close()
        await wire.reader.read()

    await attacker.crowd(200, one)


async def pipelined(attacker: Attacker, *, request: bytes, port: str = "http_port") -> None:
    """Pipelined requests without reading the answers."""

    async def one() -> None:
        number = getattr(attacker.target, port)
        wire = await attacker.connect(number, receive_buffer_bytes=4096)
        try:
            while True:
                await wire.send(request * 200)
        finally:
            wire.close()

    await attacker.again(one)


async def wrong_keys(attacker: Attacker) -> None:
    """Requests, each with a new wrong key."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        for _ in range(100):
            key = f"us-{attacker.random.getrandbits(256):064x}"
            await wire.send(head("POST", COMPLETIONS, "content-length: 0", key=key))
            if await wire.answer() is None:
                break
        wire.close()

    async def many() -> None:
        await attacker.again(one)

    await attacker.crowd(4, many)


async def methods(attacker: Attacker) -> None:
    """HEAD, TRACE, CONNECT, and invalid methods, each with a large body."""
    body = b"x" * 4_000_000

    async def one() -> None:
        method = attacker.random.choice(("HEAD", "TRACE", "CONNECT", "PURGE", "X" * 40, "GET"))
        path = attacker.random.choice(("/ping", "/version", "/v1/models", "/nowhere", "*"))
        wire = await attacker.connect(attacker.target.http_port)
        with contextlib.suppress(OSError):  # an answer may lie there
            await wire.send(head(method, path, f"content-length: {len(body)}") + body)
        await wire.answer(wait_s=1.0, is_head=method == "HEAD", is_probe=path == "/ping")
        wire.close()

    await attacker.again(one)


async def websockets(attacker: Attacker) -> None:
    """Websocket upgrades followed by bytes that are no frame."""
    upgrade = ("upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13")

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port)
        key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
        await wire.send(head("GET", "/v1/realtime", *upgrade, key))
        await wire.answer(wait_s=1.0)
        await wire.send(b"\xff" * 100_000)
        await asyncio.sleep(1.0)
        wire.close()

    await attacker.crowd(100, one)
    await attacker.again(one)


LINE = b"a: b\r\n" * 5_000
LONG_LINE = b"b: " + b"a" * 60_000 + b"\r\n"
START = b"GET /livez HTTP/1.1\r\nhost: a\r\n"

ATTACKS = (
    Attack(
        name="header-lines",
        what="80 MB of short header lines",
        run=partial(endless, first=START, piece=LINE),
        budget=ONE_CLIENT,
        cheap=True,
    ),
    Attack(
        name="header-long-lines",
        what="300 MB of header lines of 60 kB",
        run=partial(endless, first=START, piece=LONG_LINE),
        budget=FAST_CLIENT,
    ),
    Attack(
        name="header-endless-value",
        what="a header value of 300 MB",
        run=partial(endless, first=START + b"x: ", piece=b"a" * 64_000),
        budget=FAST_CLIENT,
        cheap=True,
    ),
    Attack(
        name="url-endless",
        what="a URL of 300 MB",
        run=partial(endless, first=b"GET /", piece=b"a" * 64_000),
        budget=FAST_CLIENT,
        cheap=True,
    ),
    Attack(
        name="method-endless",
        what="blank lines and a method that does not end",
        run=partial(endless, first=b"\r\n" * 1000, piece=b"A" * 64_000),
        budget=ONE_CLIENT,
    ),
    Attack(
        name="slow-heads",
        what="250 heads, a byte each half second",
        run=slow_headers,
        budget=CROWD,
    ),
    Attack(
        name="silent-connections",
        what="250 connections that say nothing",
        run=silent,
        budget=CROWD,
        cheap=True,
    ),
    Attack(
        name="half-open",
        what="200 half heads, and the end of what is said",
        run=half_open,
        budget=CROWD,
    ),
    Attack(
        name="pipelined-unread",
        what="requests one behind the other, answers never read",
        run=partial(pipelined, request=head("GET", "/version")),
        budget=Budget(connections=60, sent_bytes=20_000_000, bytes_per_s=5_000_000),
        cheap=True,
    ),
    Attack(
        name="pipelined-refused",
        what="POSTs without a key one behind the other, answers never read",
        run=partial(pipelined, request=head("POST", COMPLETIONS, "content-length: 2") + b"{}"),
        budget=Budget(connections=60, sent_bytes=20_000_000, bytes_per_s=5_000_000),
    ),
    Attack(
        name="wrong-keys",
        what="a new wrong key in every request",
        run=wrong_keys,
        budget=CROWD,
    ),
    Attack(
        name="methods",
        what="HEAD, TRACE, CONNECT and unknown methods with bodies of 4 MB",
        run=methods,
        budget=Budget(connections=60),
    ),
    Attack(
        name="websocket-upgrades",
        what="100 upgrades at a time, and garbage behind each",
        run=websockets,
        budget=Budget(connections=400),
    ),
)
