"""A port with TLS: what is decrypted, and handshakes that do not end."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from serving.access.renewed_context import RenewedContext
from serving.server.connections.connection_registry import PortLimits
from tests.serving.server.connections.echo_ports import PREFACE, REQUEST, Port, framed, until
from tests.serving.server.connections.test_listening_port import NAMES, answered, ended, with_port
from tests.serving.server.gateway.certificates import pem, written


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
        (("h2", "http/1.1"), "h2", PREFACE),
        (("h2", "http/1.1"), "http/1.1", REQUEST),  # as browsers do
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
    protocol = "h2" if first is PREFACE else "http/1.1"
    tls = RenewedContext(written(tmp_path, authority), protocols=(protocol,), port="the port")
    context = client_context(authority, *offers)

    async def test(port: Port) -> None:
        _, writer = await port.connect(context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == speaks
        writer.close()
        data = first + framed(bytes(2_000_000))
        sent = [data[:2], data[2:]]
        assert await answered(port, sent, tls=context) == NAMES[first] + data

    with_port(test, first=first, tls=tls)


@pytest.mark.long
def test_a_handshake_that_never_ends_is_a_connection_and_ends(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=("http/1.1",), port="the port")

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(3)]  # which never say hello
        await until(lambda: port.listening.connections == 2)
        await until(lambda: port.listening.connections == 0)
        for _, writer in silent:
            writer.close()
        context = client_context(authority, "http/1.1")
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST

    with_port(test, first=REQUEST, tls=tls, limits=PortLimits(connections=2, head_wait_s=0.5))


def test_handshakes_that_never_begin_make_room_for_one_that_does(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=("http/1.1",), port="the port")
    context = client_context(authority, "http/1.1")

    async def test(port: Port) -> None:
        silent = [await port.connect() for _ in range(12)]
        await until(lambda: port.listening.connections == 3)
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST
        async with asyncio.timeout(5):  # long before the handshake's own time is over
            assert await ended(*silent[0])
        for _, writer in silent:
            writer.transport.abort()
        await until(lambda: port.listening.connections == 0)

    with_port(test, first=REQUEST, tls=tls, limits=PortLimits(connections=6, silent=3))


def test_a_greeting_that_fails_in_a_way_that_nobody_thought_of_leaves_nothing(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=("http/1.1",), port="the port")
    context = client_context(authority, "http/1.1")

    def broken() -> ssl.SSLContext:
        raise ZeroDivisionError("ours")

    async def test(port: Port) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(tls, "present", broken)
            assert await ended(*await port.connect())
        await until(lambda: port.listening.connections == 0)
        assert await answered(port, [REQUEST], tls=context) == b"http:" + REQUEST

    with_port(test, first=REQUEST, tls=tls)


def test_a_client_that_ends_its_tls_first_is_nothing_to_warn_of(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = RenewedContext(written(tmp_path, authority), protocols=("h2",), port="the port")
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
        await until(lambda: port.listening.connections == 0)
        assert port.echoes[0].ended == 1

    with_port(test, tls=tls)
    assert [one.getMessage() for one in caplog.records if "eof" in one.getMessage()] == []
