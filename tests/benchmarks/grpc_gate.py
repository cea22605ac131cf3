"""CPU of the gate before gRPC in the API process: per unary call, per streamed token.

The same grpc.aio server on its own port and behind ours, in turns. The client is another process,
so all CPU of this one is the server's.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import uvloop

from serving.server.connections.grpc_relay import GrpcConnection, GrpcSocket, NamedConnections
from serving.server.connections.listening_port import ListeningPort

CALLS: Final = 3_000
TOKENS: Final = 200
STREAMS: Final = 40
TOKEN: Final = bytes(60)
"""About the size of an answer of one token."""

ROUNDS: Final = 7

_CLIENT: Final = """
import asyncio, sys, grpc.aio
async def main(port, kind, calls, at_a_time):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async def unary():
            for _ in range(calls // at_a_time):
                await channel.unary_unary("/bench/Unary")(b"x" * 200)
        async def stream():
            async for _ in channel.unary_stream("/bench/Stream")(b"x" * 200):
                pass
        which = {"unary": unary, "stream": stream}[kind]
        await asyncio.gather(*(which() for _ in range(at_a_time)))
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


def server(names: NamedConnections) -> grpc.aio.Server:
    """An immediate server that names connections as the guard does."""

    async def unary(request: bytes, context: Any) -> bytes:
        names.showed(context.peer(), "key")
        return request

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        del request
        names.showed(context.peer(), "key")
        for _ in range(TOKENS):
            yield TOKEN
            await asyncio.sleep(0.001)  # each by itself, as a model makes them

    made = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    return made


async def cpu_us(port: int, kind: str, calls: int, at_a_time: int, count: int) -> float:
    """Of this process, per one of `count`."""
    began_s = time.process_time()
    command = (sys.executable, "-c", _CLIENT, str(port), kind, str(calls), str(at_a_time))
    client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    assert await client.wait() == 0
    return 1e6 * (time.process_time() - began_s) / count


async def measure() -> None:
    names = NamedConnections()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "grpc.sock"
        served = server(names)
        bare_port = served.add_insecure_port("127.0.0.1:0")
        served.add_insecure_port(f"unix:{path}")
        await served.start()
        make = partial(GrpcConnection, GrpcSocket(path, names), b"")
        gated = ListeningPort(make, name="the port")
        gated_port = bare_port + 1
        gated.listen("127.0.0.1", gated_port)
        await gated.start()
        for kind, at_a_time, count in (
            ("unary", 16, CALLS),
            ("stream", STREAMS, STREAMS * TOKENS),
        ):
            figures: dict[str, list[float]] = {"bare": [], "gated": []}
            for _ in range(ROUNDS):
                for name, port in (("bare", bare_port), ("gated", gated_port)):
                    figures[name].append(await cpu_us(port, kind, CALLS, at_a_time, count))
            medians = [statistics.median(figures[name]) for name in ("bare", "gated")]
            what = "call" if kind == "unary" else "token"
            print(f"a {what}: {medians[0]:.0f} us of CPU bare, {medians[1]:.0f} us gated")
        await gated.stop()
        await served.stop(None)


if __name__ == "__main__":
    uvloop.run(measure())
