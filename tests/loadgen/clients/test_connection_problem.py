import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp.http_exceptions import BadStatusLine

from loadgen.clients.connection_problem import PROBLEMS, connection_problem
from loadgen.records.result import CONNECT, CUT_OFF, STREAM

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    return serve


async def without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()
    await writer.wait_closed()


def failure_of(serve: Serve | None, scheme: str = "http") -> Exception:
    """What aiohttp raises for a GET of a server that serves so, or of none."""

    async def ask() -> Exception:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            if serve is not None:
                taken.listen()
                server = await asyncio.start_server(serve, sock=taken)
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"{scheme}://127.0.0.1:{port}/") as response,
                ):
                    await response.read()
            except PROBLEMS as failure:
                return failure
            finally:
                if serve is not None:
                    server.close()
                    others = asyncio.all_tasks() - {asyncio.current_task()}
                    await asyncio.gather(*others, return_exceptions=True)
        raise AssertionError("it did not fail")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("serve", "scheme", "touched", "problem"),
    [
        (None, "http", False, (CONNECT, "no connection: Connection refused")),
        (without_tls, "https", False, (CONNECT, "no connection: TLS failed")),
        (
            answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
            "http",
            True,
            (CUT_OFF, "the connection ended within the reply"),
        ),
        (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
            "http",
            True,
            (CUT_OFF, "the connection ended within the reply"),
        ),
        (answering(b""), "http", False, (CUT_OFF, "the connection ended before any byte of")),
        (answering(b"hello\r\n\r\n"), "http", True, (STREAM, "an answer that is not HTTP")),
    ],
)
def test_what_fails_has_a_kind_and_our_own_words(
    serve: Serve | None, scheme: str, touched: bool, problem: tuple[str, str]
) -> None:
    kind, words = connection_problem(failure_of(serve, scheme), touched=touched)

    assert (kind, words[: len(problem[1])]) == problem
    assert "Error" not in words
    assert "400, message" not in words


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        (
            ConnectionResetError(errno.ECONNRESET, "any"),
            (CUT_OFF, f"the connection ended within the reply: {os.strerror(errno.ECONNRESET)}"),
        ),
        (aiohttp.ConnectionTimeoutError("any"), (CONNECT, "no connection within 30 s")),
        (BadStatusLine("\x1b[2J"), (STREAM, "an answer that is not HTTP: ")),
    ],
)
def test_words_are_the_system_s_and_a_terminal_only_shows_them(
    failure: Exception, problem: tuple[str, str]
) -> None:
    kind, words = connection_problem(failure, touched=True)

    assert (kind, words[: len(problem[1])]) == problem
    assert words.isprintable()


def test_a_certificate_that_is_not_trusted_says_so_without_a_class_of_python_s() -> None:
    inner = ssl.SSLCertVerificationError(1, "any")
    inner.verify_message = "self-signed certificate"
    key = aiohttp.client_reqrep.ConnectionKey("a", 1, True, True, None, None, None)
    failure = aiohttp.ClientConnectorCertificateError(key, inner)

    assert connection_problem(failure, touched=False) == (
        CONNECT,
        "no connection: the certificate is not trusted (self-signed certificate)",
    )
