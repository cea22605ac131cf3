"""A server as cheap as Python allows, to find what the client itself costs.

    python -m tests.loadgen.trivial_server TOKENS CHUNKS_PER_WRITE

It prints its port, answers every POST with TOKENS chunks of the size that vLLM sends, as fast as it
can, and turns to the next connection after each write.
"""

import asyncio
import sys

CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
    b'"created":1700000000,"model":"trivial","choices":[{"index":0,"text":" word","logprobs":null,'
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
    """Reads requests one at a time and streams the same reply to each."""

    def __init__(self, tokens: int, chunks_per_write: int) -> None:
        self._received = b""
        writes, rest = divmod(tokens, chunks_per_write)
        self._writes = [_framed(CHUNK) * chunks_per_write] * writes + [_framed(CHUNK) * rest]
        self._end = _framed(USAGE % (tokens + 16, tokens)) + b"0\r\n\r\n"

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
            self._task = asyncio.get_running_loop().create_task(self._reply())

    async def _reply(self) -> None:
        self._transport.write(HEAD)
        for data in self._writes:
            self._transport.write(data)
            await asyncio.sleep(0)
        self._transport.write(self._end)


async def serve(tokens: int, chunks_per_write: int) -> None:
    """Serve on a free port until ended."""
    server = await asyncio.get_running_loop().create_server(
        lambda: TrivialProtocol(tokens, chunks_per_write), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
