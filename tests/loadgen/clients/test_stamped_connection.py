"""Holds what `stamped_connection` uses of aiohttp beyond its documented interface."""

import asyncio
import time

import pytest

from loadgen.clients.client import ClientSpec
from loadgen.clients.openai_http import OpenAIHttpClient
from loadgen.clients.reply_stream import ReplyStream
from loadgen.clients.stamped_connection import ArrivalQueue, ArrivingReply, StampedHandler
from tests.loadgen.clients.test_openai_http import REQUEST

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
REQUESTS = 8


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


async def burst(happened: list[str], *, head_with_it: bool) -> None:
    """Write a token to every one of some requests at once, and note what their client does."""
    waiting: list[asyncio.StreamWriter] = []
    all_there = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if not head_with_it:
            writer.write(HEAD)
        waiting.append(writer)
        if len(waiting) == REQUESTS:
            all_there.set()

    def now_ns() -> int:
        happened.append("stamped")
        return time.monotonic_ns()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    spec = ClientSpec(api="completions", url=url, model="m", timeout_s=20)
    async with (
        server,
        OpenAIHttpClient(
            spec, tls=None, on_chunks=lambda _: happened.append("parsed"), now_ns=now_ns
        ) as client,
    ):
        sent = [asyncio.ensure_future(client.send(REQUEST)) for _ in range(REQUESTS)]
        await all_there.wait()
        await asyncio.sleep(0.05)  # the heads are through, if there are any
        happened.clear()
        for writer in waiting:
            writer.write((HEAD if head_with_it else b"") + framed(EVENT))
        while happened.count("parsed") < REQUESTS:
            await asyncio.sleep(0)
        middle = list(happened)
        for writer in waiting:
            writer.write(framed(DONE) + b"0\r\n\r\n")
        replies = await asyncio.gather(*sent)
        happened[:] = middle
    assert [(reply.error, len(reply.chunk_ns)) for reply in replies] == [(None, 1)] * REQUESTS


@pytest.mark.parametrize("head_with_it", [False, True])
def test_a_burst_is_stamped_on_every_connection_before_it_is_parsed_on_one(
    head_with_it: bool,
) -> None:
    happened: list[str] = []
    asyncio.run(burst(happened, head_with_it=head_with_it))

    assert happened == ["stamped"] * REQUESTS + ["parsed"] * REQUESTS


def test_what_waits_when_its_connection_is_lost_is_not_lost_with_it() -> None:
    async def lose() -> list[int]:
        loop = asyncio.get_running_loop()
        handler = StampedHandler(loop, ArrivalQueue(loop, lambda: 7))
        handler.set_response_params(read_until_eof=True)
        reply = ArrivingReply(ReplyStream(asked_tokens=8), on_chunks=lambda _: None)
        handler.begin(reply)
        handler.data_received(HEAD + framed(EVENT))
        handler.connection_lost(None)
        return reply.stream.chunk_ns

    assert asyncio.run(lose()) == [7]


@pytest.mark.parametrize("status", [b"200 OK", b"500 Oops"])
def test_a_body_that_is_larger_than_every_buffer_is_read_to_its_end(status: bytes) -> None:
    body = EVENT * 40_000 + DONE

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await reader.read()  # until the client closes it
        writer.close()

    async def ask() -> tuple[str | None, int]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        spec = ClientSpec(api="completions", url=url, model="m", timeout_s=20)
        async with server, OpenAIHttpClient(spec, tls=None, on_chunks=lambda _: None) as client:
            reply = await client.send(REQUEST)
        return reply.error, len(reply.chunk_ns)

    assert asyncio.run(ask()) == (
        (None, 40_000) if status.startswith(b"200") else ("status 500", 0)
    )
