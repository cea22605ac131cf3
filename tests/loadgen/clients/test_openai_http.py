import asyncio
import socket
from typing import Any

from loadgen.clients.client import ABORTED, CONNECTION, STREAM, TIMEOUT, Reply
from loadgen.clients.openai_http import CompletionOptions, OpenAIHttpClient, new_session
from loadgen.request import Request
from tests.loadgen.known_server import MODEL, KnownServer

REQUEST = Request(request_id=3, prompt=(5, 6, 7), input_tokens=3, output_tokens=4)


def send(
    url: str,
    *,
    request: Request = REQUEST,
    timeout_s: float = 20.0,
    ignore_eos: bool = True,
    cancel_after_s: float | None = None,
) -> Reply:
    async def once() -> Reply:
        async with new_session() as session:
            client = OpenAIHttpClient(
                session,
                url=url,
                options=CompletionOptions(
                    model=MODEL, timeout_s=timeout_s, ignore_eos=ignore_eos, temperature=0.5
                ),
                on_chunks=chunks_seen.append,
            )
            task = asyncio.create_task(client.send(request))
            if cancel_after_s is not None:
                asyncio.get_running_loop().call_later(cancel_after_s, task.cancel)
            return await task

    chunks_seen: list[int] = []
    reply = asyncio.run(once())
    assert sum(chunks_seen) >= len(reply.chunk_ns)
    return reply


def test_a_reply_has_its_chunks_in_order_and_the_server_s_counts() -> None:
    with KnownServer().serving() as server:
        reply = send(server.url)

    assert (reply.error, reply.message) == (None, "")
    assert (reply.input_tokens, reply.output_tokens) == (3, 4)
    assert len(reply.chunk_ns) == 4
    assert [reply.sent_ns, *reply.chunk_ns] == sorted([reply.sent_ns, *reply.chunk_ns])


def test_the_request_on_the_wire_is_an_openai_completion() -> None:
    with KnownServer().serving() as server:
        send(server.url)
        send(
            server.url,
            request=Request(request_id=0, prompt="two words", input_tokens=2, output_tokens=1),
            ignore_eos=False,
        )
        bodies: list[dict[str, Any]] = server.bodies

    common = {
        "model": MODEL,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert bodies == [
        {**common, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True},
        {**common, "prompt": "two words", "max_tokens": 1},
    ]


def test_a_refusal_is_an_error_of_its_status_with_the_server_s_words() -> None:
    with KnownServer(fail_status=503).serving() as server:
        reply = send(server.url)

    assert (reply.error, reply.message, reply.chunk_ns) == ("status 503", "no room", ())


def test_a_failure_within_the_stream_is_an_error_and_keeps_what_came() -> None:
    with KnownServer(fail_in_stream=True).serving() as server:
        reply = send(server.url)

    assert (reply.error, reply.message) == (STREAM, "the engine died")
    assert len(reply.chunk_ns) == 1


def test_a_connection_that_breaks_is_an_error_and_keeps_what_came() -> None:
    with KnownServer(fail_by_closing=True).serving() as server:
        reply = send(server.url)

    assert reply.error == CONNECTION
    assert len(reply.chunk_ns) == 1


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    with socket.socket() as free:  # bound and not listening: nobody else can take the port
        free.bind(("127.0.0.1", 0))
        reply = send(f"http://127.0.0.1:{free.getsockname()[1]}")

    assert reply.error == CONNECTION
    assert "onnect" in reply.message


def test_a_reply_that_does_not_end_in_time_is_a_timeout() -> None:
    with KnownServer(endless=True).serving() as server:
        reply = send(server.url, timeout_s=0.3)

    assert (reply.error, reply.message) == (TIMEOUT, "no complete reply within 0.3 s")
    assert len(reply.chunk_ns) == 1


def test_a_cancelled_request_is_an_aborted_reply() -> None:
    with KnownServer(endless=True).serving() as server:
        reply = send(server.url, cancel_after_s=0.3)

    assert reply.error == ABORTED
    assert len(reply.chunk_ns) == 1


def test_a_reply_without_usage_has_chunks_and_no_counts() -> None:
    with KnownServer(with_usage=False).serving() as server:
        reply = send(server.url)

    assert (reply.error, reply.input_tokens, reply.output_tokens) == (None, None, None)
    assert len(reply.chunk_ns) == 4
