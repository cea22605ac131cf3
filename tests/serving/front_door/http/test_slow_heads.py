"""Connections on which nothing begins, at a real uvicorn."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import uvicorn

from serving.front_door.http.slow_heads import SlowHeads

HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n"
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()  # until the client goes
        return
    await asyncio.sleep(0.3)  # longer than a head may take
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def lives(write: Any, seconds: float = 5.0, *, websocket: bool = False) -> bytes:
    """What a connection is answered until it is closed, or nothing was said for `seconds`; beside
    it there is another, of a websocket when it says so, which then stays open.
    """
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error", timeout_keep_alive=1)
    config.load()
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
    watch = SlowHeads(server, wait_s=0.1)
    await watch.start()
    port = server.servers[0].sockets[0].getsockname()[1]
    beside = await asyncio.open_connection("127.0.0.1", port)
    if websocket:
        beside[1].write(HANDSHAKE)
        assert (await beside[0].readline()).startswith(b"HTTP/1.1 101")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writing = asyncio.ensure_future(write(writer))
    try:
        return await asyncio.wait_for(reader.read(), seconds)
    except ConnectionResetError:  # closed while a byte of the client's was on its way
        return b""
    finally:
        if websocket:
            assert not beside[0].at_eof()
        beside[1].close()
        writing.cancel()
        writer.close()
        await watch.stop()
        server.should_exit = server.force_exit = True
        await serving


async def trickle(writer: asyncio.StreamWriter) -> None:
    for byte in HEAD * 10:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.02)


async def nothing(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(10.0)


async def one_and_a_trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"\r\n")
    await asyncio.sleep(0.8)  # longer than a first head may take: the connection is kept
    while True:
        await trickle(writer)


def test_a_head_that_does_not_come_or_comes_by_the_byte_ends_the_connection() -> None:
    for write in (nothing, trickle):
        assert asyncio.run(lives(write)) == b""


def test_a_request_on_its_way_takes_its_time_and_the_next_head_has_its_own() -> None:
    begin_s = time.monotonic()
    answer = asyncio.run(lives(one_and_a_trickle))
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert time.monotonic() - begin_s > 1.0  # closed, and not before the time it may be kept


def test_a_websocket_stays_and_does_not_end_the_guard() -> None:
    assert asyncio.run(lives(nothing, websocket=True)) == b""


def test_a_look_that_fails_is_followed_by_the_next() -> None:
    class Connections:
        looks = 0

        def __iter__(self) -> Any:
            self.looks += 1
            raise RuntimeError("changed while it was looked at")

    async def live() -> int:
        connections = Connections()
        server = SimpleNamespace(
            server_state=SimpleNamespace(connections=connections),
            config=SimpleNamespace(timeout_keep_alive=0),
        )
        watch = SlowHeads(server, wait_s=0.02)
        await watch.start()
        await asyncio.sleep(0.1)
        await watch.stop()
        return connections.looks

    assert asyncio.run(live()) > 1
