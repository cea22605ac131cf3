"""A port of this network that leads to another address, byte for byte.

    python console_port.py 0.0.0.0:50052 127.0.0.1:50051

compose.yaml runs it in the engine's network, so that the control port, which listens on loopback
there, can be published. Who may do what stays the control port's to say: it wants its key.
"""

import asyncio
import contextlib
import sys

CHUNK_BYTES = 64 * 2**10


async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """All bytes of one direction, and its end."""
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


async def main(listen: str, target: str) -> None:
    """Listen until the process is ended."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):  # either end may break off
            there, back = await asyncio.open_connection(*target.rsplit(":", 1))
            with contextlib.closing(back):
                await asyncio.gather(pour(reader, back), pour(there, writer))

    server = await asyncio.start_server(carry, *listen.rsplit(":", 1))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
