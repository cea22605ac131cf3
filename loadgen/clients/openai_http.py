"""Streams completions over HTTP: `POST /v1/completions` with `stream` and `include_usage`.

aiohttp is the client because it was measured to be cheap enough: about 5 microseconds of one core
per streamed token, parsing included (`python -m tests.benchmarks.client_overhead`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec

from loadgen.clients.client import ABORTED, CONNECTION, STREAM, TIMEOUT, Reply
from loadgen.clients.completion_stream import CompletionStream, error_message
from loadgen.request import Request

CONNECT_TIMEOUT_S: Final = 30.0
ERROR_BODY_BYTES_MAX: Final = 65_536
# Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: a request that
# met the closing would fail for no fault of the server's.
KEEPALIVE_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """What every request of a run has in common. `timeout_s` is wall time, for a whole reply."""

    model: str
    timeout_s: float
    ignore_eos: bool
    temperature: float


def new_session(*, key: str = "") -> aiohttp.ClientSession:
    """Open a session that holds no request back: the attack alone limits what is in flight.

    `key` goes with every request; an empty one does not.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(connector=connector, auto_decompress=False, headers=headers)


class OpenAIHttpClient:
    """Sends requests to one server. `on_chunks` is told how many chunks each read brought."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        url: str,
        options: CompletionOptions,
        on_chunks: Callable[[int], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._session = session
        self._url = f"{url}/v1/completions"
        self._options = options
        self._on_chunks = on_chunks
        self._now_ns = now_ns
        self._timeout = aiohttp.ClientTimeout(
            total=options.timeout_s, sock_connect=CONNECT_TIMEOUT_S
        )
        self._encode = msgspec.json.Encoder().encode

    async def send(self, request: Request) -> Reply:
        """Send, and read the reply to its end; see `Client.send`."""
        body = self._body(request)
        stream = CompletionStream()
        error, message = None, ""
        sent_ns = self._now_ns()
        try:
            error, message = await self._exchange(body, stream)
        except asyncio.CancelledError:  # the attack's way to abort: swallowed here, and recorded
            error, message = ABORTED, "the run was interrupted"
        except TimeoutError:
            error, message = TIMEOUT, f"no complete reply within {self._options.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as failure:
            error, message = CONNECTION, f"{type(failure).__name__}: {failure}"
        stream.finish()
        if error is None and stream.error is not None:
            error, message = STREAM, stream.error
        return Reply(
            sent_ns=sent_ns,
            chunk_ns=tuple(stream.chunk_ns),
            input_tokens=stream.input_tokens,
            output_tokens=stream.output_tokens,
            error=error,
            message=message,
        )

    async def _exchange(self, body: bytes, stream: CompletionStream) -> tuple[str | None, str]:
        """Post, and feed what comes to `stream`; returns a refusal's kind and words."""
        async with self._session.post(
            self._url,
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=self._timeout,
        ) as response:
            if response.status != 200:
                refusal = await response.content.read(ERROR_BODY_BYTES_MAX)
                return f"status {response.status}", error_message(refusal)
            read, now_ns, chunk_ns = response.content.readany, self._now_ns, stream.chunk_ns
            before = 0
            while data := await read():
                stream.feed(data, now_ns())
                self._on_chunks(len(chunk_ns) - before)
                before = len(chunk_ns)
        return None, ""

    def _body(self, request: Request) -> bytes:
        body: dict[str, object] = {
            "model": self._options.model,
            "prompt": request.prompt,
            "max_tokens": request.output_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._options.ignore_eos:
            body["ignore_eos"] = True
        return self._encode(body)
