"""Unfinished TLS, and attacks that a server with TLS must stand as well."""

import asyncio
import contextlib
import ssl
from functools import partial

from tests.attacks.attack import Attack, Budget, Server
from tests.attacks.attacker import Attacker
from tests.attacks.grpc_streams import UNFINISHED, unfinished
from tests.attacks.heads import LINE, START, endless, silent
from tests.attacks.http1 import head
from tests.attacks.http2_frames import garbage
from tests.attacks.target import HOST

HANDSHAKE = 22
RECORD_VERSION = b"\x03\x01"


def client_hello(protocol: str) -> bytes:
    """The first record of OpenSSL's handshake."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([protocol])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="a").do_handshake()
    return outgoing.read()


async def handshake_bytes(attacker: Attacker, *, port: str, count: int = 150) -> None:
    """A handshake of a byte per quarter of a second."""
    hello = client_hello("h2")

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port), plain=True)
        for byte in hello:
            await wire.send(bytes((byte,)))
            await asyncio.sleep(0.25)

    await attacker.crowd(count, one)


async def endless_hello(attacker: Attacker, *, port: str) -> None:
    """A ClientHello with a declared 16 MB, in records of a byte."""
    first = bytes((HANDSHAKE,)) + RECORD_VERSION + (4).to_bytes(2, "big") + b"\x01\xff\xff\xff"
    one_byte = bytes((HANDSHAKE,)) + RECORD_VERSION + (1).to_bytes(2, "big") + b"\0"

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port), plain=True)
        try:
            await wire.send(first)
            while not wire.reader.at_eof():
                await wire.send(one_byte * 200)
                await asyncio.sleep(0)
        finally:
            wire.close()

    await attacker.again(one)


async def handshakes(attacker: Attacker, *, port: str) -> None:
    """Handshakes, finished or ended after the server's half, without requests."""
    hello = client_hello("h2" if port == "grpc_port" else "http/1.1")

    async def one() -> None:
        wire = await attacker.connect(getattr(attacker.target, port), plain=True)
        await wire.send(hello)
        await wire.reader.read(1)
        wire.reset()

    await attacker.again(one, pause_s=0.03)


async def alerts(attacker: Attacker) -> None:
    """Endless TLS warnings, as for renegotiation."""
    warning = b"\x15\x03\x03\x00\x02\x01\x64"  # a warning: no renegotiation

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port, plain=True)
        try:
            await wire.send(client_hello("http/1.1"))
            while not wire.reader.at_eof():
                await wire.send(warning * 1000)
                await asyncio.sleep(0)
        finally:
            wire.close()

    await attacker.again(one)


async def plain_text(attacker: Attacker) -> None:
    """Plain HTTP to a TLS port."""

    async def one() -> None:
        wire = await attacker.connect(attacker.target.http_port, plain=True)
        await wire.send(head("GET", "/livez") * 100)
        await wire.reader.read(100)
        wire.close()

    await attacker.again(one, pause_s=0.01)


async def small_records(attacker: Attacker) -> None:
    """A head over TLS, one byte per record."""

    async def one() -> None:
        tls = attacker.target.tls("http/1.1")
        assert tls is not None
        wire = await attacker.connect(attacker.target.http_port)
        try:
            await wire.send(b"GET /livez HTTP/1.1\r\nhost: " + HOST.encode() + b"\r\nx: ")
            while not wire.reader.at_eof():
                await wire.send(b"a")
                await asyncio.sleep(0)
        finally:
            wire.close()

    await attacker.again(one)


TLS = Server.TLS
CROWD = Budget(connections=250, sent_bytes=4_000_000)

ATTACKS = (
    Attack(
        name="tls-silent",
        what="250 connections that begin no handshake",
        run=silent,
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-slow-handshakes",
        what="150 handshakes, a byte each quarter of a second",
        run=partial(handshake_bytes, port="http_port"),
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-endless-hello",
        what="a ClientHello of 16 MB in records of a byte",
        run=partial(endless_hello, port="http_port"),
        on=TLS,
        budget=Budget(connections=60, bytes_per_s=5_000_000),
    ),
    Attack(
        name="tls-handshakes",
        what="handshakes that are reset half-way, 30 a second",
        run=partial(handshakes, port="http_port"),
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-alerts",
        what="warnings without end",
        run=alerts,
        on=TLS,
        budget=Budget(connections=200, bytes_per_s=5_000_000),
    ),
    Attack(
        name="tls-garbage",
        what="random bytes instead of a handshake",
        run=partial(garbage, port="http_port", plain=True),
        on=TLS,
        budget=Budget(connections=100),
    ),
    Attack(
        name="tls-plain-text",
        what="plain HTTP to a port that speaks TLS",
        run=plain_text,
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-small-records",
        what="a head over TLS, each byte a record",
        run=small_records,
        on=TLS,
        budget=Budget(connections=20, sent_bytes=2_000_000),
    ),
    Attack(
        name="tls-header-lines",
        what="80 MB of short header lines over TLS",
        run=partial(endless, first=START, piece=LINE),
        on=TLS,
        budget=Budget(connections=60),
    ),
    Attack(
        name="tls-grpc-silent",
        what="250 connections to the gRPC port that begin no handshake",
        run=partial(silent, port="grpc_port"),
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-grpc-slow-handshakes",
        what="150 handshakes with the gRPC port, a byte each quarter of a second",
        run=partial(handshake_bytes, port="grpc_port"),
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-grpc-handshakes",
        what="handshakes with the gRPC port that are reset half-way, 30 a second",
        run=partial(handshakes, port="grpc_port"),
        on=TLS,
        budget=CROWD,
    ),
    Attack(
        name="tls-grpc-unfinished",
        what="90 streams of 15 MB to Health/Check over TLS, the last byte withheld",
        run=unfinished,
        on=TLS,
        budget=UNFINISHED,
    ),
)
