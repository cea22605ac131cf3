"""A server as cheap as Python allows, to measure the client's own cost.

    python -m tests.loadgen.trivial_server TOKENS CHUNKS_PER_WRITE [STEP_MS]

It prints its port, and answers every POST with TOKENS chunks of vLLM's size. Without STEP_MS at
full speed, turning to the next connection after each write. With it all replies advance together, a
chunk each every STEP_MS, as an engine's do: the worst case for arrival stamps. A chunk's text
is then the time of its write, ns of the system's monotonic clock.
"""

import asyncio
import sys
import time

CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
    b'"created":1700000000,"model":"trivial","choices":[{"index":0,"text":"%b","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
    b'"created":1700000000,"model":"trivial","choices":[],'
    b'"usage":{"prompt_tokens":16,"total_tokens":%d,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _framed(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


class TrivialProtocol(asyncio.Protocol):
    """Reads requests one at a time; calls `begin` with each, to stream the reply."""

    def __init__(self, server: "TrivialServer") -> None:
        self._received = b""
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            self._transport.write(HEAD)
            self._server.begin(self._transport)


class TrivialServer:
    """Serves the same reply to every request."""

    def __init__(self, tokens: int, chunks_per_write: int, step_s: float) -> None:
        writes, rest = divmod(tokens, chunks_per_write)
        word = _framed(CHUNK % b" word")
        self._writes = [word * chunks_per_write] * writes + [word * rest] * bool(rest)
        self._end = _framed(USAGE % (tokens + 16, tokens)) + b"0\r\n\r\n"
        self._tokens = tokens
        self._step_s = step_s
        self._left: dict[asyncio.Transport, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, transport: asyncio.Transport) -> None:
        if self._step_s:
            self._left[transport] = self._tokens
            return
        task = asyncio.get_running_loop().create_task(self._reply(transport))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, transport: asyncio.Transport) -> None:
        for data in self._writes:
            transport.write(data)
            await asyncio.sleep(0)
        transport.write(self._end)

    async def step(self) -> None:
        """Advance all replies together, for ever."""
        due_s = time.monotonic()
        while True:
            due_s += self._step_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            for transport, left in list(self._left.items()):
                transport.write(_framed(CHUNK % (b"%d" % time.monotonic_ns())))
                self._left[transport] = left - 1
                if left == 1:
                    transport.write(self._end)
                    del self._left[transport]


async def serve(tokens: int, chunks_per_write: int, step_s: float) -> None:
    trivial = TrivialServer(tokens, chunks_per_write, step_s)
    server = await asyncio.get_running_loop().create_server(
        lambda: TrivialProtocol(trivial), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    if step_s:
        await trivial.step()
    await server.serve_forever()


if __name__ == "__main__":
    step_ms = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), step_ms / 1e3))
