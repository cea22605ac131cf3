"""One port, two servers: who gets a connection, how it flows, how it ends, how many there are."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.access.renewed_context import RenewedContext
from serving.server.connections.first_bytes import Speech
from serving.server.connections.grpc_socket import GrpcSocket
from serving.server.connections.shared_port import PortLimits, SharedPort, listening_sockets
from tests.serving.server.connections.shared_ports import (
    PREFACE,
    REQUEST,
    Echo,
    Port,
    a_port,
    framed,
    until,
)
from tests.serving.server.control.small_engine import free_port
from tests.serving.server.gateway.certificates import pem, written


def run(main: Coroutine[Any, Any, None]) -> None:
    """In the loop that vLLM's API process has."""
    uvloop.run(asyncio.wait_for(main, 30))


def with_port(
    test: Callable[[Port], Awaitable[None]],
    *,
    limits: PortLimits | None = None,
    tls: RenewedContext | None = None,
) -> None:
    async def main() -> None:
        async with a_port(limits=limits, tls=tls) as port:
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


def test_each_server_gets_its_own_and_every_byte_of_it() -> None:
    async def test(port: Port) -> None:
        data = PREFACE + framed(b"frames")
        assert await answered(port, [data]) == b"h2:" + data
        assert await answered(port, [REQUEST]) == b"http:" + REQUEST
        await until(lambda: port.shared.connections == 0)

    with_port(test)


@settings(max_examples=25)
@given(
    first=st.sampled_from([PREFACE, REQUEST, b"P", b"PRO", b"PRI *"]),
    rest=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 260), max_size=6),
)
def test_however_the_first_bytes_are_cut_they_come_whole_to_the_right_one(
    first: bytes, rest: bytes, cuts: list[int]
) -> None:
    # By then it is decided.
    data = first + (framed(rest) if first == PREFACE else b"\r\n" + rest)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    name = b"h2:" if data.startswith(b"PRI * HTTP/2.0") else b"http:"

    async def test(port: Port) -> None:
        assert await answered(port, pieces) == name + data

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
        await until(lambda: port.shared.connections == 0)

    with_port(test)


def test_when_the_server_ends_a_connection_the_client_has_its_last_words_and_the_end() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE + framed(b"go away"))
        assert await reader.read() == b"h2:" + PREFACE + framed(b"go away")
        writer.close()
        await until(lambda: port.shared.connections == 0)

    with_port(test)


def test_a_client_that_goes_is_gone_for_its_server() -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(PREFACE)
        await reader.readexactly(len(PREFACE) + 3)
        writer.transport.abort()
        await until(lambda: port.shared.connections == 0)
        await until(port.echoes[0].transport.is_closing)

    with_port(test)


def test_without_a_server_behind_it_a_connection_just_ends() -> None:
    async def main() -> None:
        shared = SharedPort(
            name="the port",
            http=lambda: Echo(b""),
            grpc_socket=GrpcSocket(Path("nowhere.sock")),
        )
        number = free_port()
        shared.listen("127.0.0.1", number)
        await shared.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(PREFACE)
        assert await ended(reader, writer)
        await until(lambda: shared.connections == 0)
        await shared.stop()

    run(main())


@pytest.mark.parametrize("said", [b"", b"PR", b"GET / HTTP/1.1\r\nHost: here\r\n"])
def test_who_does_not_end_a_first_head_is_not_waited_for(said: bytes) -> None:
    async def test(port: Port) -> None:
        reader, writer = await port.connect()
        writer.write(said)
        assert await ended(reader, writer)
        await until(lambda: port.shared.connections == 0)

    with_port(test, limits=PortLimits(head_wait_s=0.2))


def test_who_has_sent_a_head_may_be_silent_for_longer() -> None:
    async def test(port: Port) -> None:
        http, grpc = await port.connect(), await port.connect()
        half = len(REQUEST) - 2
        http[1].write(REQUEST[:half])
        grpc[1].write(PREFACE)
        await http[0].readexactly(len(b"http:") + half)
        http[1].write(REQUEST[half:])
        await asyncio.sleep(0.5)  # longer than a head is waited for
        for _, writer in (http, grpc):
            writer.write(framed(b"still here"))
        assert (await http[0].readexactly(21)).endswith(b"still here")
        assert (await grpc[0].readexactly(len(PREFACE) + 22)).endswith(b"still here")

    with_port(test, limits=PortLimits(head_wait_s=0.3))


def test_a_full_port_takes_nobody_and_has_room_when_somebody_goes() -> None:
    limits = PortLimits(connections=20)

    async def test(port: Port) -> None:
        inside = [await port.connect() for _ in range(20)]
        for reader, writer in inside:
            writer.write(PREFACE)
            await reader.readexactly(3)
        assert port.shared.connections == 20
        reader, writer = await port.connect()
        assert await ended(reader, writer)
        inside[0][1].transport.abort()
        await until(lambda: port.shared.connections == 19)
        assert await answered(port, [PREFACE]) == b"h2:" + PREFACE

    with_port(test, limits=limits)


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the server ends the connection; an end is as good as a loss."""
    try:
        await reader.read()
        return reader.at_eof()
    except ConnectionError:
        return True
    finally:
        writer.close()


def test_a_thousand_that_say_nothing_keep_nobody_out() -> None:
    limits = PortLimits(connections=1_000, silent=50)

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(1_100)]
        assert await answered(port, [PREFACE]) == b"h2:" + PREFACE
        assert await answered(port, [REQUEST]) == b"http:" + REQUEST
        assert port.shared.connections <= 52
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: port.shared.connections == 0)

    with_port(test, limits=limits)


def test_pages_have_room_of_their_own_and_calls_the_rest() -> None:
    async def main() -> None:
        async with a_port(limits=PortLimits(http=2), at_work={REQUEST}) as port:
            pages = [await port.connect() for _ in range(2)]
            for reader, writer in pages:
                writer.write(REQUEST)
                await reader.readexactly(5 + len(REQUEST))
            reader, writer = await port.connect()
            writer.write(REQUEST)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            assert await answered(port, [PREFACE]) == b"h2:" + PREFACE
            writer.close()

    run(main())


def test_of_too_many_pages_the_one_that_was_silent_for_longest_and_asks_nothing_makes_room() -> (
    None
):
    async def main() -> None:
        asks, waits = REQUEST, b"POST /session HTTP/1.1\r\n\r\n{"
        async with a_port(limits=PortLimits(http=3), at_work={asks}) as port:
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


def test_the_port_s_end_is_everybody_s() -> None:
    async def main() -> None:
        async with a_port() as port:
            connected = [await port.connect() for _ in range(3)]
            for (reader, writer), first in zip(connected, [PREFACE, REQUEST, b""], strict=True):
                writer.write(first)
                if first:
                    await reader.readexactly(3)
            await port.shared.stop()
            await port.shared.stop()
            for reader, writer in connected:
                assert await ended(reader, writer)
            with pytest.raises(ConnectionRefusedError):
                await port.connect()
            await until(lambda: port.shared.connections == 0)

    run(main())


@pytest.mark.parametrize("field", ["connections", "http", "strangers", "silent", "head_wait_s"])
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


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def client_context(authority: trustme.CA, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem(authority).decode())
    context.set_alpn_protocols(list(protocols))
    return context


@pytest.mark.parametrize(
    ("offers", "speaks", "first"),
    [
        (("h2",), "h2", PREFACE),  # as gRPC's clients do
        (("h2", "http/1.1"), "http/1.1", REQUEST),  # as browsers do
        (("http/1.1",), "http/1.1", REQUEST),
        ((), None, PREFACE),
        ((), None, REQUEST),
    ],
)
def test_over_tls_a_client_is_told_what_it_gets_and_gets_it(
    offers: tuple[str, ...],
    speaks: str | None,
    first: bytes,
    authority: trustme.CA,
    tmp_path: Path,
) -> None:
    tls = RenewedContext(
        written(tmp_path, authority), protocols=(Speech.HTTP_1, Speech.HTTP_2), port="the port"
    )
    context = client_context(authority, *offers)

    async def test(port: Port) -> None:
        _, writer = await port.connect(context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == speaks
        writer.close()
        name = b"h2:" if first is PREFACE else b"http:"
        assert await answered(port, [first[:2], first[2:]], tls=context) == name + first
        data = PREFACE + framed(bytes(2_000_000))
        if name == b"h2:":
            assert await answered(port, [data], tls=context) == name + data

    with_port(test, tls=tls)


def test_a_handshake_that_never_ends_is_a_connection_and_ends(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=(Speech.HTTP_1,), port="the port")

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(3)]  # which never say hello
        await until(lambda: port.shared.connections == 2)
        await until(lambda: port.shared.connections == 0)
        for _, writer in silent:
            writer.close()
        context = client_context(authority, "http/1.1")
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST

    with_port(test, tls=tls, limits=PortLimits(connections=2, head_wait_s=0.5))


def test_handshakes_that_never_begin_make_room_for_one_that_does(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=(Speech.HTTP_1,), port="the port")
    context = client_context(authority, "http/1.1")

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(12)]
        await until(lambda: port.shared.connections == 3)
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST
        async with asyncio.timeout(5):  # long before the handshake's own time is over
            assert await ended(*silent[0])
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: port.shared.connections == 0)

    with_port(test, tls=tls, limits=PortLimits(connections=6, silent=3))


def test_a_greeting_that_fails_in_a_way_that_nobody_thought_of_leaves_nothing(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=(Speech.HTTP_1,), port="the port")
    context = client_context(authority, "http/1.1")

    def broken() -> ssl.SSLContext:
        raise ZeroDivisionError("ours")

    async def test(port: Port) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tls, "present", broken)
            assert await ended(*await port.connect())
        await until(lambda: port.shared.connections == 0)
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST

    with_port(test, tls=tls)


def test_a_client_that_ends_its_tls_first_is_nothing_to_warn_of(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=(Speech.HTTP_2,), port="the port")
    context = client_context(authority, "h2")

    def ended_in_order(number: int) -> None:
        with socket.create_connection(("127.0.0.1", number), timeout=5) as plain:
            client = context.wrap_socket(plain, server_hostname="127.0.0.1")
            client.sendall(PREFACE)
            client.recv(100)
            client.unwrap()  # says close_notify, and hears it

    async def test(port: Port) -> None:
        with contextlib.suppress(OSError):  # the echo's last words may come instead
            await asyncio.to_thread(ended_in_order, port.number)
        await until(lambda: port.shared.connections == 0)
        assert port.echoes[0].ended == 1

    with_port(test, tls=tls)
    assert [one.getMessage() for one in caplog.records if "eof" in one.getMessage()] == []
