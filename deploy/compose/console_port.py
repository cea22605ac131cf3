"""Ports of this network that lead to other addresses, byte for byte.

    python console_port.py 0.0.0.0:50061 127.0.0.1:50051 0.0.0.0:50062 127.0.0.1:50052

compose.yaml runs it in the engine's network, to publish the control and console ports, which listen
on loopback there. Both still need their key.
"""

import asyncio
import socket
import sys

CHUNK_BYTES = 64 * 2**10

LAST_WALL_S = 5.0
"""Time for a client to take the last bytes after the target has ended."""


async def pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy one direction, and its end."""
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


def end(writer: asyncio.StreamWriter) -> None:
    """Close after the last bytes, or after LAST_WALL_S."""
    writer.close()
    asyncio.get_running_loop().call_later(LAST_WALL_S, writer.transport.abort)


async def main(*addresses: str) -> None:
    """Lead each address to the one after it, until cancelled."""
    pairs = zip(addresses[::2], addresses[1::2], strict=True)
    async with asyncio.TaskGroup() as group:
        for listen, target in pairs:
            group.create_task(lead(listen, target))


async def lead(listen: str, target: str) -> None:
    """Listen until cancelled."""

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
