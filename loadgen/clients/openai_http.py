"""Streams completions and chats over HTTP from an OpenAI-compatible server.

aiohttp with connections that stamp bytes; `python -m tests.benchmarks.http_clients` measures its
cost and accuracy beside others.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Final, Self

import aiohttp
import numpy as np
from multidict import CIMultiDict
from yarl import URL

from loadgen.clients.client import ClientSpec, Reply
from loadgen.clients.connection_problem import CONNECT_TIMEOUT_S, PROBLEMS, connection_problem
from loadgen.clients.openai_body import PATHS, body_maker
from loadgen.clients.reply_stream import ReplyStream
from loadgen.clients.server_json import error_message
from loadgen.clients.stamped_connection import (
    ARRIVING,
    ArrivingReply,
    StampedConnector,
    StampedResponse,
)
from loadgen.records.request import Request
from loadgen.records.result import ABORTED, STREAM, TIMEOUT

ERROR_BODY_BYTES_MAX: Final = 65_536
# Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request that
# met the closing would have to be sent again.
KEEPALIVE_S: Final = 4.0
# *Assumed*: far above a network's round trip, which is how long the closing of an idle connection
# is on its way, and far below the time for which a server that has taken a request holds it.
RESEND_WITHIN_S: Final = 1.0


class OpenAIHttpClient:
    """Sends requests of one class to one server; `on_chunks` is called as chunks arrive.

    Opening a connection is part of a request's latency. A request that meets the server's closing
    of an idle connection (a reused one, lost within RESEND_WITHIN_S without a byte of a response)
    is sent once more, on a new connection; its latency counts from the first time, and the reply is
    marked `resent`. (aiohttp does this for GET; a POST could be taken twice, which for a completion
    only costs the server work.) Redirects count as a status other than 200. Made in the running
    event loop; an asynchronous context manager that closes its connections.
    """

    def __init__(
        self,
        spec: ClientSpec,
        *,
        tls: ssl.SSLContext | None,
        on_chunks: Callable[[int], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._url = URL(spec.url.rstrip("/") + PATHS[spec.api])
        self._headers = CIMultiDict({"Content-Type": "application/json"})
        if spec.key:
            self._headers["Authorization"] = f"Bearer {spec.key}"
        self._headers.update(spec.headers)
        self._body = body_maker(spec)
        self._timeout_s = spec.timeout_s
        self._tls = tls
        self._on_chunks = on_chunks
        self._now_ns = now_ns
        self._kept = self._session(keepalive_timeout=KEEPALIVE_S)
        self._anew: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kept.close()
        if self._anew is not None:
            await self._anew.close()

    async def send(self, request: Request) -> Reply:
        """Send, and read the reply to its end; see `RequestClient.send`."""
        body = self._body(request)
        stream = ReplyStream(asked_tokens=request.output_tokens, keep=request.keep_reply)
        arriving = ArrivingReply(stream, self._on_chunks)
        error, words, resent = None, "", False
        sent_ns = self._now_ns()
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    error, words = await self._exchange(self._kept, body, arriving)
                except PROBLEMS:
                    if not self._met_a_closing(arriving, sent_ns):
                        raise
                    resent = True
                    error, words = await self._exchange(self._new_session(), body, arriving)
        except asyncio.CancelledError:  # the run's way to abort: swallowed here, and recorded
            error, words = ABORTED, "the run was interrupted"
        except aiohttp.ConnectionTimeoutError as failure:  # a TimeoutError too, and not ours
            error, words = connection_problem(failure, touched=arriving.touched)
        except TimeoutError:
            error, words = TIMEOUT, f"no complete reply within {self._timeout_s:g} s"
        except PROBLEMS as failure:
            error, words = connection_problem(failure, touched=arriving.touched)
        gave_up = arriving.broken  # and closed the connection, which is no failure of its own
        stream.finish()
        if stream.error is not None and (error is None or (gave_up and error != ABORTED)):
            error, words = STREAM, stream.error
        ended_ns = arriving.ended_ns
        return Reply(
            sent_ns=sent_ns,
            ended_ns=self._now_ns() if error is not None or ended_ns is None else ended_ns,
            chunk_ns=np.array(stream.chunk_ns, dtype=np.int64),
            input_tokens=stream.input_tokens,
            output_tokens=stream.output_tokens,
            cached_tokens=stream.cached_tokens,
            error=error,
            message=words,
            text=stream.text,
            token_ids=stream.token_ids,
            resent=resent,
        )

    async def _exchange(
        self, session: aiohttp.ClientSession, body: bytes, arriving: ArrivingReply
    ) -> tuple[str | None, str]:
        """Post and await the end of the body; returns a refusal's kind and message."""
        ARRIVING.set(arriving)
        async with session.post(
            self._url, data=body, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                refusal = await response.content.read(ERROR_BODY_BYTES_MAX)
                return f"status {response.status}", error_message(refusal)
            broken = response.content.exception()
            if broken is not None:
                raise broken
            await response.content.wait_eof()
        return None, ""

    def _met_a_closing(self, arriving: ArrivingReply, sent_ns: int) -> bool:
        since_ns = self._now_ns() - sent_ns
        return arriving.reused and not arriving.touched and since_ns < RESEND_WITHIN_S * 1e9

    def _new_session(self) -> aiohttp.ClientSession:
        """The session that opens a connection per request."""
        if self._anew is None:
            self._anew = self._session(force_close=True)
        return self._anew

    def _session(self, **options: float | bool) -> aiohttp.ClientSession:
        if self._tls is not None:
            options["ssl"] = self._tls  # type: ignore[assignment]
        return aiohttp.ClientSession(
            connector=StampedConnector(now_ns=self._now_ns, **options),
            response_class=StampedResponse,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),
            skip_auto_headers=("Accept-Encoding",),
        )
