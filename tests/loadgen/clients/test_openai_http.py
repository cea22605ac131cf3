import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.clients import openai_http
from loadgen.clients.client import ClientSpec, Reply, RequestClient
from loadgen.clients.open_client import open_client
from loadgen.records.request import Message, Request
from loadgen.records.result import ABORTED, CONNECT, CUT_OFF, STREAM, TIMEOUT
from loadgen.records.run_record import Api
from tests.loadgen.known_server import MODEL, TEMPLATE_TOKENS, KnownServer

REQUEST = Request(
    request_id=3,
    traffic_class="default",
    session_id=3,
    turn=0,
    messages=(Message(role="user", content=(5, 6, 7)),),
    input_tokens=3,
    output_tokens=4,
)
SAID = replace(
    REQUEST,
    messages=(
        Message(role="system", content="be brief"),
        Message(role="user", content="two words"),
    ),
)


def spec_of(url: str, *, api: Api = "completions", timeout_s: float = 20.0) -> ClientSpec:
    return ClientSpec(api=api, url=url, model=MODEL, timeout_s=timeout_s, temperature=0.5)


def send(
    spec: ClientSpec,
    *requests: Request,
    cancel_after_s: float | None = None,
) -> list[Reply]:
    """Send one after another with one client."""

    async def one(client: RequestClient, request: Request) -> Reply:
        task = asyncio.ensure_future(client.send(request))
        if cancel_after_s is not None:
            asyncio.get_running_loop().call_later(cancel_after_s, task.cancel)
        return await task

    async def all_of_them() -> list[Reply]:
        async with open_client(spec, on_chunks=chunks_seen.append) as client:
            return [await one(client, request) for request in requests]

    chunks_seen: list[int] = []
    replies = asyncio.run(all_of_them())
    assert sum(chunks_seen) >= sum(len(reply.chunk_ns) for reply in replies)
    return replies


def in_order(reply: Reply) -> bool:
    times = [reply.sent_ns, *reply.chunk_ns.tolist(), reply.ended_ns]
    return times == sorted(times)


def test_a_reply_has_its_chunks_in_order_and_the_server_s_counts() -> None:
    with KnownServer(cached_tokens=2).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)

    assert (reply.error, reply.message, reply.resent) == (None, "", False)
    assert (reply.input_tokens, reply.output_tokens, reply.cached_tokens) == (3, 4, 2)
    assert (len(reply.chunk_ns), reply.text) == (4, None)
    assert in_order(reply)


def test_stamps_are_when_the_server_wrote() -> None:
    """Of a request that the machine does not hold up; it may hold up some."""
    assert any(_late_s() < 0.005 for _ in range(8))


def _late_s() -> float:
    """How much later stamps of a request are than the server's, which it notes before it writes."""
    with KnownServer(ttft_s=(0.05, 0.05), itl_s=(0.02, 0.02)).serving() as server:
        (reply,) = send(spec_of(server.url), replace(REQUEST, output_tokens=10))
        (truth,) = server.replies
    late_s = np.array(reply.chunk_ns) / 1e9 - truth.chunk_s
    assert late_s.min() > 0
    return float(np.median(late_s))


def test_a_chat_is_streamed_too_and_its_role_is_no_token() -> None:
    with KnownServer().serving() as server:
        (reply,) = send(spec_of(server.url, api="chat"), replace(SAID, keep_reply=True))
        bodies: list[dict[str, Any]] = server.bodies

    assert (reply.error, len(reply.chunk_ns), reply.text) == (None, 4, "word " * 4)
    assert reply.input_tokens == 4 + TEMPLATE_TOKENS
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two words"},
    ]


def test_headers_and_the_key_go_with_every_request() -> None:
    with KnownServer().serving() as server:
        spec = replace(spec_of(server.url), key="sk-1", headers={"X-Tenant": "a"})
        send(spec, REQUEST, REQUEST)
        assert server.keys == {"Bearer sk-1"}
        send(replace(spec, headers={"authorization": "Basic x"}), REQUEST)
        assert server.keys == {"Bearer sk-1", "Basic x"}


def test_a_refusal_is_an_error_of_its_status_with_the_server_s_words() -> None:
    with KnownServer(fail_status=503).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)

    assert (reply.error, reply.message, reply.chunk_ns.size) == ("status 503", "no room", 0)


def test_a_redirect_is_an_error_and_is_not_followed() -> None:
    with KnownServer(fail_status=307).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)
        assert len(server.bodies) == 1

    assert reply.error == "status 307"


def test_a_failure_within_the_stream_is_an_error_and_keeps_what_came() -> None:
    with KnownServer(fail_in_stream=True).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)

    assert (reply.error, reply.message) == (STREAM, "the engine died")
    assert len(reply.chunk_ns) == 1


def test_a_connection_that_breaks_is_an_error_and_keeps_what_came() -> None:
    with KnownServer(fail_by_closing=True).serving() as server:
        replies = send(spec_of(server.url), REQUEST, REQUEST)

    for reply in replies:
        assert (reply.error, len(reply.chunk_ns), reply.resent) == (CUT_OFF, 1, False)


def test_a_request_that_meets_the_closing_of_a_kept_connection_is_sent_once_more() -> None:
    with KnownServer(drop_used=True).serving() as server:
        replies = send(spec_of(server.url), REQUEST, REQUEST)
        assert len(server.bodies) == 3

    assert [(reply.error, reply.resent) for reply in replies] == [(None, False), (None, True)]
    assert in_order(replies[1])


def test_it_is_sent_again_on_a_new_connection_though_others_are_kept() -> None:
    async def two_and_then_one(spec: ClientSpec) -> Reply:
        async with open_client(spec, on_chunks=lambda _: None) as client:
            await asyncio.gather(client.send(REQUEST), client.send(REQUEST))
            return await client.send(REQUEST)

    with KnownServer(drop_used=True).serving() as server:
        reply = asyncio.run(two_and_then_one(spec_of(server.url)))

    assert (reply.error, reply.resent) == (None, True)


def test_a_request_that_a_new_connection_drops_is_not_sent_again() -> None:
    with KnownServer(drop_all=True).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)
        assert len(server.bodies) == 1

    assert (reply.error, reply.resent) == (CUT_OFF, False)


def test_a_request_that_a_server_held_before_it_closed_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai_http, "RESEND_WITHIN_S", 0.0)
    with KnownServer(drop_used=True).serving() as server:
        replies = send(spec_of(server.url), REQUEST, REQUEST)

    assert [(reply.error, reply.resent) for reply in replies] == [
        (None, False),
        (CUT_OFF, False),
    ]


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with socket.socket() as free:  # bound and not listening: nobody else can take the port
        free.bind(("127.0.0.1", 0))
        (reply,) = send(spec_of(f"http://127.0.0.1:{free.getsockname()[1]}"), REQUEST)

    assert (reply.error, reply.message) == (CONNECT, "no connection: Connection refused")


def test_what_is_not_http_is_an_error() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n\r\n")

    async def ask() -> Reply:
        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        spec = spec_of(f"http://127.0.0.1:{port}")
        async with server, open_client(spec, on_chunks=lambda _: None) as client:
            return await client.send(REQUEST)

    assert asyncio.run(ask()).error == STREAM


@pytest.mark.long
def test_a_reply_that_does_not_end_in_time_is_a_timeout() -> None:
    with KnownServer(endless=True).serving() as server:
        (reply,) = send(spec_of(server.url, timeout_s=0.3), REQUEST)

    assert (reply.error, reply.message) == (TIMEOUT, "no complete reply within 0.3 s")
    assert len(reply.chunk_ns) == 1
    assert 0.3e9 <= reply.ended_ns - reply.sent_ns < 5e9


@pytest.mark.long
def test_a_cancelled_request_is_an_aborted_reply() -> None:
    with KnownServer(endless=True).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST, cancel_after_s=0.3)

    assert reply.error == ABORTED
    assert len(reply.chunk_ns) == 1


def test_a_reply_without_usage_has_chunks_and_no_counts() -> None:
    with KnownServer(with_usage=False).serving() as server:
        (reply,) = send(spec_of(server.url), REQUEST)

    assert (reply.error, reply.input_tokens, reply.output_tokens) == (None, None, None)
    assert len(reply.chunk_ns) == 4


@dataclass
class Raw:
    """A server that answers request i of each connection with the bytes `answers[i]`, and closes a
    connection that has had them all."""

    answers: tuple[bytes, ...]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ClientSpec]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield spec_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=5.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in self.answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.findall(rb"content-length: (\d+)", head.lower())[0])
            await reader.readexactly(length)
            writer.write(answer)
        writer.close()


def replies_of(raw: Raw, requests: int) -> list[Reply]:
    async def ask() -> list[Reply]:
        async with raw.serving() as spec, open_client(spec, on_chunks=lambda _: None) as client:
            return [await client.send(REQUEST) for _ in range(requests)]

    return asyncio.run(ask())


def test_a_used_connection_that_breaks_after_a_byte_is_an_error_and_is_not_sent_again() -> None:
    whole = OK_HEAD + b"Content-Length: %d\r\n\r\n%b%b" % (len(EVENT + LAST), EVENT, LAST)
    replies = replies_of(Raw((whole, b"HTTP/1.1 2")), 2)

    assert [(reply.error, reply.resent) for reply in replies] == [
        (None, False),
        (CUT_OFF, False),
    ]


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": "no more"}\n\n',
        b'data: {"choices": [{"text": "\xff"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": -1}}\n\n',
    ],
)
@pytest.mark.parametrize("head_with_it", [True, False])
def test_a_reply_that_went_wrong_is_over_and_its_connection_closed(
    event: bytes, head_with_it: bool
) -> None:
    async def ask() -> tuple[Reply, bytes]:
        rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b'"ignore_eos":true}')
            writer.write(OK_HEAD + b"Connection: close\r\n\r\n")
            if not head_with_it:
                await asyncio.sleep(0.02)
            writer.write(EVENT + event)
            try:
                rest.set_result(await reader.read())  # until the client closes
            except ConnectionResetError:
                rest.set_result(b"")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        spec = spec_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=10)
        async with server, open_client(spec, on_chunks=lambda _: None) as client:
            reply = await client.send(REQUEST)
            return reply, await asyncio.wait_for(rest, timeout=5)

    reply, rest = asyncio.run(ask())

    assert (reply.error, len(reply.chunk_ns), rest) == (STREAM, 1, b"")
    assert reply.ended_ns - reply.sent_ns < 5e9
    assert in_order(reply)


def test_what_came_together_with_the_breaking_is_kept() -> None:
    cut_off = OK_HEAD + b"Content-Length: 9999\r\n\r\n" + EVENT * 2
    (reply,) = replies_of(Raw((cut_off,)), 1)

    assert (reply.error, len(reply.chunk_ns)) == (CUT_OFF, 2)


def test_a_reply_ends_when_its_last_byte_came() -> None:
    whole = OK_HEAD + b"Content-Length: %d\r\n\r\n%b%b" % (len(EVENT + LAST), EVENT, LAST)
    (reply,) = replies_of(Raw((whole,)), 1)

    assert reply.error is None
    assert reply.chunk_ns.tolist() == [reply.ended_ns]


OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
EVENT = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3}}\n\ndata: [DONE]\n\n'


@given(cuts=st.lists(st.integers(0, 1_000), max_size=6), framing=st.sampled_from("clw"))
def test_however_a_response_is_framed_and_cut_the_reply_is_the_same(
    cuts: list[int], framing: str
) -> None:
    body = EVENT * 3 + LAST
    if framing == "c":
        frames = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (EVENT,) * 3 + (LAST,))
        raw = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + frames + b"0\r\n\r\n"
    elif framing == "l":
        raw = OK_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:  # until the connection is closed
        raw = OK_HEAD + b"Connection: close\r\n\r\n" + body
    edges = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for a, b in pairwise(edges):
            writer.write(raw[a:b])
            await asyncio.sleep(0)
        if framing != "w":
            await reader.read()  # until the client closes it
        writer.close()

    async def ask() -> Reply:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        spec = spec_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server, open_client(spec, on_chunks=lambda _: None) as client:
            return await client.send(REQUEST)

    reply = asyncio.run(ask())

    assert (reply.error, len(reply.chunk_ns), reply.output_tokens) == (None, 3, 3)
    assert in_order(reply)
