"""Connections of HTTP at a real uvicorn: what they may send, how long they have, what they hold."""

import asyncio
import contextlib
import gc
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trustme
import uvicorn
import uvloop

from serving.server.gateway.http.asgi import Scope, header
from serving.server.gateway.http.bounded_protocol import (
    BoundedHttpProtocol,
    HttpIngress,
    bound_connections,
)
from serving.server.gateway.http.tls_arrival import TlsArrival
from serving.server.gateway.ingress_account import IngressAccount
from serving.server.gateway.ingress_limits import IngressLimits, Limit

pytestmark = pytest.mark.long  # most wait for limits of time

GET = b"GET /a HTTP/1.1\r\nhost: a\r\n"
KEYED = b"authorization: key alice\r\n"
HANDSHAKE = (
    b"connection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
LIMITS = IngressLimits(head_wait_s=0.2, linger_s=0.2, answer_wait_s=0.2)


def key_of(scope: Scope) -> str | None:
    said = header(scope, b"authorization") or ""
    return said.removeprefix("key ") or None


@dataclass
class App:
    """Answers each request after `takes_s` with `size_bytes`, and has read what it was sent."""

    takes_s: float = 0.0
    size_bytes: int = 2
    reads: bool = False
    bodies: list[bytes] = field(default_factory=list)
    ended: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()  # until the client goes
            return
        if self.reads:
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            self.bodies.append(body)
        await asyncio.sleep(self.takes_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(0, self.size_bytes, 2**16):
            part = b"x" * min(2**16, self.size_bytes)
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        self.ended += 1


@dataclass(frozen=True, kw_only=True)
class Server:
    port: int
    account: IngressAccount
    app: App

    async def answer(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """What a connection is told that sends these, until it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            for part in parts:
                if reader.at_eof() or writer.is_closing():
                    break
                writer.write(part)
                await asyncio.sleep(pause_s)
            return await asyncio.wait_for(reader.read(), 5.0)
        except OSError:  # reset by what was still on its way
            return b""
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def served(
    app: App, limits: IngressLimits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error", timeout_keep_alive=1)
    config.load()
    account = IngressAccount(limits)
    bound_connections(config, HttpIngress(account, key_of), None if tls is None else lambda: tls)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Server(port=port, account=account, app=app)
        async with asyncio.timeout(2.0):  # whoever has gone is forgotten
            while account.strangers or account.held_bytes:
                await asyncio.sleep(0.01)
        account.check()
    finally:
        server.should_exit = server.force_exit = True
        await serving


def run(
    use: Callable[[Server], Awaitable[None]],
    *,
    app: App | None = None,
    limits: IngressLimits = LIMITS,
    tls: ssl.SSLContext | None = None,
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> None:
    async def live() -> None:
        async with served(app or App(), limits, tls) as server:
            await asyncio.wait_for(use(server), 20.0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(live())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


@pytest.mark.parametrize(
    ("head", "limit"),
    [
        (GET + b"a: b\r\n" * 300, Limit.HEAD_FIELDS),
        (GET + b"a: b\r\n" * 100_000, Limit.HEAD_FIELDS),
        (GET + (b"a: " + b"b" * 60_000 + b"\r\n") * 2 + b"\r\n", Limit.HEAD_BYTES),
        (GET + b"a: " + b"b" * 1_000_000, Limit.HEAD_BYTES),
        (GET + b"a" * 1_000_000, Limit.HEAD_BYTES),
        (b"GET /" + b"a" * 1_000_000, Limit.HEAD_BYTES),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", Limit.HEAD_BYTES),
        (b"\r\n" * 200_000, Limit.HEAD_BYTES),
        (GET + KEYED + b"a: " + b"b" * 1_000_000, Limit.HEAD_BYTES),
    ],
)
def test_a_head_of_any_size_is_refused_with_the_reason(head: bytes, limit: Limit) -> None:
    async def use(server: Server) -> None:
        answer = await server.answer(head)
        assert (status(answer), error(answer)) == (431, limit.value)
        assert server.account.refusals == {limit: 1}
        assert not server.app.ended

    run(use)


def test_trailers_and_chunk_extensions_are_heads_too() -> None:
    chunked = GET + KEYED + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n"

    async def use(server: Server) -> None:
        for rest, limit in (
            (b"0\r\n" + b"a: b\r\n" * 300, Limit.HEAD_FIELDS),
            (b"0\r\na: " + b"b" * 1_000_000, Limit.HEAD_BYTES),
            (b"1;" + b"e" * 1_000_000, Limit.HEAD_BYTES),
        ):
            before = server.account.refusals[limit]
            await server.answer(chunked + rest)
            assert server.account.refusals[limit] == before + 1

    run(use, app=App(reads=True))


@pytest.mark.parametrize(
    "head",
    [
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxy",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\nx",
        b"GET /a HTTP/1.1\nhost: a\n\n",
        b"GET /a HTTP/1.1\r\nhost: a\nb: c\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\n b: folded\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nho\x00st: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
def test_what_two_servers_could_read_in_two_ways_is_no_request(head: bytes) -> None:
    async def use(server: Server) -> None:
        answer = await server.answer(head)
        assert (status(answer), error(answer)) == (400, "malformed_request"), answer
        assert not server.app.ended

    run(use)


def test_a_head_that_does_not_come_or_comes_by_the_byte_ends_the_connection() -> None:
    async def use(server: Server) -> None:
        assert await server.answer() == b""
        slow = await server.answer(*(bytes([each]) for each in GET * 4), pause_s=0.01)
        assert status(slow) in (0, 408)  # reset by a byte that was on its way
        half = await server.answer(GET)
        assert (status(half), error(half)) == (408, "head_time")
        assert server.account.refusals == {Limit.HEAD_TIME: 3}

    run(use)


def test_a_request_takes_its_time_and_the_next_head_on_its_connection_has_its_own() -> None:
    async def use(server: Server) -> None:
        begin_s = time.monotonic()
        answer = await server.answer(GET + b"\r\n", GET, pause_s=0.6)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"HTTP/1.1 408" in answer
        assert time.monotonic() - begin_s > 0.6

    run(use, app=App(takes_s=0.4))


def test_line_ends_do_not_keep_a_connection_that_is_idle() -> None:
    async def use(server: Server) -> None:
        answer = await server.answer(GET + b"\r\n", *[b"\r\n"] * 30, pause_s=0.05)
        assert server.account.refusals[Limit.HEAD_TIME] == 1
        assert answer.startswith(b"HTTP/1.1 200 OK") or not answer

    run(use)


def test_requests_in_one_packet_are_answered_in_order_as_far_as_the_limit() -> None:
    async def use(server: Server) -> None:
        few = await server.answer(*[GET + KEYED + b"\r\n"] * 9, GET + b"connection: close\r\n\r\n")
        assert few.count(b"HTTP/1.1 200 OK") == 10
        await server.answer((GET + b"\r\n") * 10_000)
        assert server.account.refusals == {Limit.PIPELINED_REQUESTS: 1}
        assert server.app.ended < 30

    run(use)


@pytest.mark.parametrize("half_bytes", [9, len(GET) - 3, len(GET), len(GET) + 20])
def test_half_a_head_behind_a_request_is_that_of_the_next_one(half_bytes: int) -> None:
    first = GET + KEYED + b"\r\n"
    second = GET + KEYED + b"connection: close\r\n\r\n"

    async def use(server: Server) -> None:
        parts = (first + second[:half_bytes], second[half_bytes:])
        answer = await server.answer(*parts, pause_s=0.1)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert b"connection: close" in answer  # the second one's fields are its own, and all there
        assert not server.account.refusals

    run(use, app=App(takes_s=0.02))


def test_a_stranger_s_body_is_thrown_away_and_its_connection_is_not_kept_for_it() -> None:
    head = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 4000000\r\n"

    async def use(server: Server) -> None:
        answer = await server.answer(head + b"\r\n" + b"x" * 3_999_999)
        assert status(answer) == 200
        assert server.account.refusals == {Limit.UNREAD_BODY: 1}
        short = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n"
        answer = await server.answer(short + b"\r\n", b"x" * 5, GET + b"\r\n", pause_s=0.1)
        assert answer.count(b"HTTP/1.1 200 OK") == 2  # it is kept when all of it has come

    run(use)


def test_a_client_with_a_key_has_its_body_read() -> None:
    async def use(server: Server) -> None:
        body = b"x" * 3_000_000
        head = b"POST /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n"
        await server.answer(head % len(body) + KEYED + b"\r\n" + body)
        assert server.app.bodies == [body]

    run(use, app=App(reads=True))


def test_strangers_that_are_too_many_end_the_first_and_clients_with_a_key_stay() -> None:
    limits = IngressLimits(strangers_max=8, head_wait_s=5.0)

    async def use(server: Server) -> None:
        keyed = await asyncio.open_connection("127.0.0.1", server.port)
        keyed[1].write(GET + KEYED + b"\r\n")
        assert (await keyed[0].readline()).startswith(b"HTTP/1.1 200")
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
        for reader, _ in silent[:4]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 2.0) == b""
        assert server.account.refusals == {Limit.STRANGERS: 4}
        keyed[1].write(GET + KEYED + b"connection: close\r\n\r\n")
        assert b"200 OK" in await keyed[0].read()
        for _, writer in silent:
            writer.close()

    run(use, limits=limits)


def test_heads_that_hold_too_much_together_make_room_for_the_last() -> None:
    limits = IngressLimits(stranger_bytes_max=200_000, head_wait_s=5.0)

    async def use(server: Server) -> None:
        halves = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        for _, writer in halves:
            writer.write(GET + b"a: " + b"b" * 50_000)
        answer = await server.answer(GET + b"connection: close\r\n\r\n")
        assert status(answer) == 200
        async with asyncio.timeout(2.0):
            while server.account.refusals[Limit.STRANGER_BYTES] < 5:
                await asyncio.sleep(0.01)
        assert server.account.stranger_bytes <= 200_000
        for _, writer in halves:
            writer.close()

    run(use, limits=limits)


def test_who_does_not_read_its_answer_is_cut_off_and_who_reads_slowly_is_not() -> None:
    async def use(server: Server) -> None:
        _, deaf = await asyncio.open_connection("127.0.0.1", server.port, limit=2**12)
        deaf.write(GET + KEYED + b"\r\n")
        slow, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**16)
        writer.write(GET + KEYED + b"connection: close\r\n\r\n")
        read_bytes = 0
        while part := await slow.read(2**20):
            read_bytes += len(part)
            await asyncio.sleep(0.005)
        assert read_bytes > server.app.size_bytes
        async with asyncio.timeout(5.0):
            while not server.account.refusals[Limit.UNREAD_ANSWER]:
                await asyncio.sleep(0.05)
        assert server.account.refusals == {Limit.UNREAD_ANSWER: 1}
        deaf.close()

    run(use, app=App(size_bytes=20_000_000))


def test_one_connection_of_a_key_too_many_is_told_so_and_others_are_served() -> None:
    async def use(server: Server) -> None:
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in kept:
            writer.write(GET + KEYED + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        late = await server.answer(GET + KEYED + b"content-length: 3\r\n\r\nabc")
        assert (status(late), error(late)) == (429, "key_connections")
        assert b"retry-after: 1\r\n" in late
        bob = GET + b"authorization: key bob\r\nconnection: close\r\n\r\n"
        assert status(await server.answer(bob)) == 200
        kept[0][1].write(GET + KEYED + b"\r\n")
        assert await kept[0][0].readuntil(b"HTTP/1.1 200")
        for _, writer in kept:
            writer.close()
        while server.account.connections_of("alice"):
            await asyncio.sleep(0.01)
        again = await server.answer(GET + KEYED + b"connection: close\r\n\r\n")
        assert status(again) == 200
        assert server.account.refusals == {Limit.KEY_CONNECTIONS: 1}

    run(use, limits=replace(LIMITS, key_connections_max=2))


def test_a_websocket_needs_a_key_and_then_has_no_limit_of_these() -> None:
    async def use(server: Server) -> None:
        refused = await server.answer(GET + HANDSHAKE)
        assert (status(refused), error(refused)) == (403, "unauthenticated_upgrade")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET + KEYED + HANDSHAKE)
        assert (await reader.readline()).startswith(b"HTTP/1.1 101")
        await asyncio.sleep(0.5)  # longer than any of the times
        assert not reader.at_eof()
        writer.close()

    run(use)


def test_an_upgrade_to_what_is_not_offered_is_a_request_like_any_other() -> None:
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"

    async def use(server: Server) -> None:
        first = GET + KEYED + upgrade + b"\r\n"
        answer = await server.answer(first, GET + b"connection: close\r\n\r\n", pause_s=0.1)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
        assert server.account.refusals == {}

    run(use)


def test_what_comes_after_an_answer_to_half_a_body_ends_the_connection_without_another() -> None:
    head = b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"

    async def use(server: Server) -> None:
        for rest in (b"no chunk\r\n", b"0\r\na: b\r\n\r\n"):
            answer = await server.answer(head, rest, pause_s=0.1)
            assert answer.count(b"HTTP/1.1") == 1

    run(use)


def test_vllm_s_flags_about_heads_hold_when_they_are_given() -> None:
    config = uvicorn.Config(App(), lifespan="off")
    config.load()
    ingress = HttpIngress(IngressAccount(), key_of)
    for flags, expected in (
        ({}, (64 * 2**10, 256)),
        ({"h11_max_incomplete_event_size": 4 * 2**20, "h11_max_header_count": 256}, None),
        ({"h11_max_incomplete_event_size": 1_000, "h11_max_header_count": 7}, (1_000, 7)),
    ):
        for name, value in flags.items():
            setattr(config, name, value)
        bound_connections(config, ingress)
        made: Any = config.http_protocol_class
        found = (made.keywords["head_bytes_max"], made.keywords["head_fields_max"])
        assert found == (expected or (64 * 2**10, 256))


def test_a_handshake_that_does_not_end_is_counted_and_ended_and_others_speak_tls() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    limits = IngressLimits(handshake_wait_s=0.3, linger_s=0.2)

    async def use(server: Server) -> None:
        silent, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.sleep(0.05)
        assert server.account.strangers == 1
        for _ in range(3):
            reader, keyed = await asyncio.open_connection("127.0.0.1", server.port, ssl=client)
            keyed.write(GET + KEYED + b"connection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            keyed.close()
        assert status(await server.answer(GET + b"\r\n")) == 0  # plain text
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(silent.read(), 5.0) == b""
        assert server.account.refusals == {Limit.HANDSHAKE_TIME: 1}
        writer.close()

    run(use, limits=limits, tls=context)
    run(use, limits=limits, tls=context, loop=uvloop.new_event_loop)


def broken(*_: Any, **__: Any) -> None:
    raise ValueError("broken")


class BrokenContext(ssl.SSLContext):
    wrap_bio = broken  # type: ignore[assignment]


@pytest.mark.parametrize("fault", ["context", "_hand_on", "connection_made"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_fails_in_its_handshake_by_our_own_fault_is_closed(
    fault: str, loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    kind = BrokenContext if fault == "context" else ssl.SSLContext
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    if fault == "_hand_on":
        monkeypatch.setattr(TlsArrival, "_hand_on", broken)
    elif fault == "connection_made":
        monkeypatch.setattr(BoundedHttpProtocol, "connection_made", broken)

    async def use(server: Server) -> None:
        tasks, faults = asyncio.all_tasks(), []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: faults.append(told))
        try:
            async with asyncio.timeout(2.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client)
                assert await reader.read() == b""
                writer.close()
        except TimeoutError:
            pytest.fail("the connection stays open")
        except OSError:
            pass  # reset
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == tasks
        gc.collect()
        assert [str(told["exception"]) for told in faults] == ["broken"]

    run(use, tls=context, loop=loop)
