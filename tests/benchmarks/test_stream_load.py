"""What counts as a stream that ended."""

import asyncio

import pytest

from tests.benchmarks.stream_load import StreamCounts, connected, post

TOKEN = b'data: {"choices": []}\n\n'
ERROR = b'data: {"error": {"message": "no"}}\n\n'
DONE = b"data: [DONE]\n\n"


def counted(*parts: bytes, tokens: int | None) -> StreamCounts:
    """Of one stream with status 200 whose body comes in `parts`, each written by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)  # so that parts are read one by one
        writer.write(b"\r\n0\r\n\r\n")
        await writer.drain()

    async def ask() -> StreamCounts:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        counts = StreamCounts()
        connection = await connected(url, counts)
        await connection.send(post(url, "/", {}), tokens)
        connection.close()
        server.close()
        return counts

    return asyncio.run(ask())


@pytest.mark.parametrize("tokens", [2, 3, None])
def test_a_stream_with_its_chunks_has_ended(tokens: int | None) -> None:
    counts = counted(TOKEN, TOKEN, DONE, tokens=tokens)

    assert (counts.ended, counts.ended_chunks, counts.failures) == (1, 2, [])


@pytest.mark.parametrize("parts", [(ERROR,), (ERROR[:9], ERROR[9:]), (TOKEN, ERROR)])
def test_one_that_says_an_error_has_failed(parts: tuple[bytes, ...]) -> None:
    counts = counted(*parts, DONE, tokens=2)

    assert counts.ended == 0
    assert [failure[:14] for failure in counts.failures] == ['data: {"error"']


@pytest.mark.parametrize("chunks", [0, 9])
def test_one_with_other_chunks_than_tokens_has_failed(chunks: int) -> None:
    counts = counted(*[TOKEN] * chunks, DONE, tokens=3)

    assert counts.failures == [f"{chunks} chunks of 3 tokens"]
