"""A port of gRPC and one of HTTP: how connections begin, flow and end, and how many there are."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.access.renewed_context import RenewedContext
from serving.server.connections.connection_registry import PortLimits
from serving.server.connections.grpc_relay import GrpcConnection, GrpcSocket
from serving.server.connections.listening_port import ListeningPort, listening_sockets
from tests.e2e.server_process import free_port
from tests.serving.server.connections.echo_ports import (
    PREFACE,
    REFUSAL,
    REQUEST,
    Port,
    a_port,
    an_http_port,
    framed,
    until,
)
from tests.serving.server.connections.http2_frames import pieces


def run(main: Coroutine[Any, Any, None]) -> None:
    """In the loop that vLLM's API process has."""
    uvloop.run(asyncio.wait_for(main, 30))


KINDS = {PREFACE: a_port, REQUEST: an_http_port}
"""Of ports, by what their clients say first."""

EACH_KIND = pytest.mark.parametrize("first", [PREFACE, REQUEST], ids=["gRPC", "HTTP"])


def with_port(
    test: Callable[[Port], Awaitable[None]],
    *,
    first: bytes = PREFACE,
    limits: PortLimits | None = None,
    tls: RenewedContext | None = None,
) -> None:
    async def main() -> None:
        async with KINDS[first](limits=limits, tls=tls) as port:
            await test(port)

    run(main())


async def answered(port: Port, pieces: list[bytes], *, tls: ssl.SSLContext | None = None) -> bytes:
    """What a client hears that sends these pieces, each after the one before has gone."""
    reader, writer = await port.connect(tls)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    expected = len(b"".join(pieces))
    heard = await reader.readuntil(b":")
    heard += await reader.readexactly(expected)
    writer.close()
    return heard


NAMES = {PREFACE: b"h2:", REQUEST: b"http:"}


@given(
    first=st.sampled_from([PREFACE, REQUEST]),
    rest=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 260), max_size=6),
)
def test_however_the_bytes_are_cut_they_come_whole(
    first: bytes, rest: bytes, cuts: list[int]
) -> None:
    data = first + framed(rest)

    async def test(port: Port) -> None:
        assert await answered(port, pieces(data, cuts)) == NAMES[first] + data
        await until(lambda: port.listening.connections == 0)

    with_port(test, first=first)


@given(
    first=st.sampled_from([REQUEST, b"PRO", b"PRI *\r\n", PREFACE[:-1] + b"x", b"\x16\x03\x01"])
    | st.binary(min_size=1, max_size=50).filter(
        lambda data: not PREFACE.startswith(data[: len(PREFACE)])
    ),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_what_is_no_http_2_has_one_answer_on_grpc_s_port_and_the_end(
    first: bytes, cuts: list[int]
) -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        with contextlib.suppress(ConnectionError):  # it may have ended before the last piece
            for piece in pieces(first, cuts):
                writer.write(piece)
                await writer.drain()
            assert await reader.read() in (REFUSAL, b"")
        writer.close()
        await until(lambda: port.listening.connections == 0)
        assert not port.echoes  # the server never sees it

    with_port(test)


def test_a_browser_on_grpc_s_port_reads_the_answer() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(REQUEST)
        assert await reader.read() == REFUSAL
        writer.close()

    with_port(test)


def test_a_lot_flows_both_ways_and_arrives_in_order() -> None:
    data = PREFACE + framed(bytes(range(256)) * 20_000)  # 5 MB: more than all buffers on the way

    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        sending = asyncio.create_task(_send(writer, data))
        assert await reader.readexactly(len(data) + 3) == b"h2:" + data
        await sending

    with_port(test)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.long
def test_a_client_that_does_not_read_holds_its_server_back() -> None:
    class Endless(asyncio.Protocol):
        """Writes for as long as it may."""

        written = 0
        held_back = False

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: asyncio.Transport = transport  # type: ignore[assignment]
            self.more()

        def more(self) -> None:
            while not self.held_back and self.written < 2**28:
                self.transport.write(bytes(2**16))
                self.written += 2**16

        def pause_writing(self) -> None:
            self.held_back = True

        def resume_writing(self) -> None:
            self.held_back = False
            self.more()

    endless = Endless()

    async def main() -> None:
        async with a_port(grpc=lambda: endless) as port:
            reader, writer = await port.connect()
            writer.write(PREFACE)
            await until(lambda: endless.held_back)
            seen = -1
            while seen != endless.written:  # until no buffer on the way takes any more
                seen = endless.written
                await asyncio.sleep(0.2)
            assert endless.held_back
            assert seen < 2**25  # the kernel's buffers, and little of ours
            await reader.readexactly(seen + 1)  # and it goes on as soon as somebody reads
            assert endless.written > seen
            writer.transport.abort()
            await until(endless.transport.is_closing)

    run(main())


def test_the_end_of_one_direction_is_handed_on_and_the_other_goes_on() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        writer.write_eof()
        assert await reader.read() == b"h2:" + PREFACE + b"bye"
        assert port.echoes[0].ended == 1
        writer.close()
        await until(lambda: port.listening.connections == 0)

    with_port(test)


def test_when_the_server_ends_a_connection_the_client_has_its_last_words_and_the_end() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE + framed(b"go away"))
        assert await reader.read() == b"h2:" + PREFACE + framed(b"go away")
        writer.close()
        await until(lambda: port.listening.connections == 0)

    with_port(test)


def test_a_client_that_goes_is_gone_for_its_server() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        await reader.readexactly(len(PREFACE) + 3)
        writer.transport.abort()
        await until(lambda: port.listening.connections == 0)
        await until(port.echoes[0].transport.is_closing)

    with_port(test)


def test_without_a_server_behind_it_a_connection_just_ends() -> None:
    async def main() -> None:
        make = partial(GrpcConnection, GrpcSocket(Path("nowhere.sock")), REFUSAL)
        listening = ListeningPort(make, name="the port")
        number = free_port()
        listening.listen("127.0.0.1", number)
        await listening.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(PREFACE)
        assert await ended(reader, writer)
        await until(lambda: listening.connections == 0)
        await listening.stop()

    run(main())


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (PREFACE, b""),
        (PREFACE, PREFACE[:-1]),
        (REQUEST, b""),
        (REQUEST, b"GET / HTTP/1.1\r\nHost: here\r\n"),
    ],
)
def test_a_client_that_does_not_end_its_first_head_is_cut_off(first: bytes, said: bytes) -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(said)
        assert await ended(reader, writer)
        await until(lambda: port.listening.connections == 0)

    with_port(test, first=first, limits=PortLimits(head_wait_s=0.2))


@pytest.mark.long
@EACH_KIND
def test_a_client_that_has_sent_a_head_may_be_silent_for_longer(first: bytes) -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(first[:-2])
        await asyncio.sleep(0.1)
        writer.write(first[-2:])
        await reader.readexactly(len(NAMES[first] + first))
        await asyncio.sleep(0.5)  # longer than a head is waited for
        writer.write(framed(b"still here"))
        assert (await reader.readexactly(19)).endswith(b"still here")

    with_port(test, first=first, limits=PortLimits(head_wait_s=0.3))


def test_a_port_full_of_keys_takes_none_more_until_one_goes() -> None:
    async def test() -> None:
        limits = PortLimits(connections=20)
        async with an_http_port(limits=limits, at_work={REQUEST}) as port:
            inside = [await port.connect() for _ in range(20)]
            for reader, writer in inside:
                writer.write(REQUEST)
                await reader.readuntil(REQUEST)
            assert port.listening.connections == 20
            assert await ended(*await port.connect())
            assert port.listening.connections == 20
            inside[0][1].transport.abort()
            await until(lambda: port.listening.connections == 19)
            assert await answered(port, [REQUEST]) == b"http:" + REQUEST

    run(test())


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the server ends the connection; an end is as good as a loss."""
    try:
        await reader.read()
        return reader.at_eof()
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.long
@EACH_KIND
def test_a_thousand_silent_clients_keep_none_out(first: bytes) -> None:
    limits = PortLimits(connections=1_000, silent=50)

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(1_100)]
        assert await answered(port, [first]) == NAMES[first] + first
        assert port.listening.connections <= 51
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: port.listening.connections == 0)

    with_port(test, first=first, limits=limits)


def test_pages_at_work_are_kept_and_a_full_port_of_them_takes_no_more() -> None:
    async def main() -> None:
        async with an_http_port(limits=PortLimits(connections=2), at_work={REQUEST}) as port:
            pages = [await port.connect() for _ in range(2)]
            for reader, writer in pages:
                writer.write(REQUEST)
                await reader.readexactly(5 + len(REQUEST))
            assert await ended(*await port.connect())
            for reader, writer in pages:
                writer.write(b"here")
                assert await reader.readexactly(4) == b"here"
                writer.close()

    run(main())


def test_of_too_many_pages_the_one_that_was_silent_for_longest_and_asks_nothing_makes_room() -> (
    None
):
    async def main() -> None:
        asks, waits = REQUEST, b"POST /session HTTP/1.1\r\n\r\n{"
        async with an_http_port(limits=PortLimits(strangers=2), at_work={asks}) as port:
            pages = [await port.connect() for _ in range(3)]
            for (reader, writer), first in zip(pages, (asks, waits, waits), strict=True):
                writer.write(first)
                await reader.readexactly(5 + len(first))
            pages[1][1].write(b" ")  # so it is the third that was silent for longer
            await pages[1][0].readexactly(1)
            assert await answered(port, [REQUEST]) == b"http:" + REQUEST
            assert await ended(*pages[2])
            for reader, writer in pages[:2]:
                writer.write(b"here")
                assert await reader.readexactly(4) == b"here"
                writer.close()

    run(main())


@EACH_KIND
def test_the_port_s_end_is_everybody_s(first: bytes) -> None:
    async def main() -> None:
        async with KINDS[first]() as port:
            connected = [await port.connect() for _ in range(2)]
            connected[0][1].write(first)
            await connected[0][0].readexactly(3)
            await port.listening.stop()
            await port.listening.stop()
            for reader, writer in connected:
                assert await ended(reader, writer)
            with pytest.raises(ConnectionRefusedError):
                await port.connect()
            await until(lambda: port.listening.connections == 0)

    run(main())


@pytest.mark.parametrize("field", ["connections", "strangers", "silent", "head_wait_s"])
def test_limits_that_let_nobody_in_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}=0: expected"):
        PortLimits(**{field: 0})


def test_a_name_with_several_addresses_is_all_of_them_and_a_wildcard_both_families() -> None:
    for host in ("localhost", "0.0.0.0", "::"):
        listening = listening_sockets(host, free_port())
        port = listening[0].getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(OSError, match="in use"):
            listening_sockets(host, port)
        for each in listening:
            each.close()
