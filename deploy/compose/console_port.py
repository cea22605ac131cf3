"""A port of this network that leads to another address, byte for byte.

    python console_port.py 0.0.0.0:50052 127.0.0.1:50051

compose.yaml runs it in the engine's network, so that the control port, which listens on loopback
there, can be published. Who may do what stays the control port's to say: it wants its key.
"""

import asyncio
import socket
import sys

CHUNK_BYTES = 64 * 2**10

LAST_WALL_S = 5.0
"""What a client has to take the last bytes, and to end, once the target has ended."""


async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """All bytes of one direction, and its end."""
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


def end(writer: asyncio.StreamWriter) -> None:
    """Close it once it has sent what it has, or has had the time for that."""
    writer.close()
    asyncio.get_running_loop().call_later(LAST_WALL_S, writer.transport.abort)


async def main(listen: str, target: str) -> None:
    """Listen until the process is ended."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            there, back = await asyncio.open_connection(*target.rsplit(":", 1))
            writers.append(back)
            for each in writers:  # who vanishes without a word is found out
                each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            async with asyncio.TaskGroup() as group:
                forth = group.create_task(pour(reader, back))
                await pour(there, writer)
                asyncio.get_running_loop().call_later(LAST_WALL_S, forth.cancel)
        except* OSError:
            pass  # either end may break off
        finally:
            for each in writers:
                end(each)

    server = await asyncio.start_server(carry, *listen.rsplit(":", 1))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
