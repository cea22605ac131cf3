"""Cost and stamp accuracy of HTTP clients: figures, no assertion.

    python -m tests.benchmarks.http_clients [NAME...]

Each client runs in its own process on one core, under asyncio and uvloop, against
`tests.loadgen.trivial_server` on the other core, with the same reader of events. Three cases: long
replies of a token per write, short replies, and replies in lockstep whose chunks carry their write
time: the difference to the client's stamp is its lateness. `ours` is aiohttp with our stamping
connections, `raw` a bare parser on a socket, the least. Candidates not installed are left out;
httpx and pyreqwest are no dependencies.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import msgspec
import numpy as np

from loadgen.clients.client import ClientSpec
from loadgen.clients.open_client import open_client
from loadgen.clients.reply_stream import ReplyStream
from loadgen.records.request import Message, Request
from tests.benchmarks.raw_http import RawHttp

Send = Callable[[], Awaitable[tuple[list[int], str]]]
"""Sends one request; returns its chunks' stamps and its text."""

BODY = msgspec.json.encode({"model": "m", "prompt": list(range(16)), "stream": True})
JSON_TYPE = {"Content-Type": "application/json"}
NAMES = ("ours", "raw", "aiohttp", "httpx", "pyreqwest")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The server's behaviour, and the number of requests."""

    tokens: int
    concurrency: int
    requests: int
    step_ms: float = 0.0


CASES = (
    Case(tokens=500, concurrency=64, requests=192),
    Case(tokens=4, concurrency=64, requests=3_000),
    Case(tokens=100, concurrency=64, requests=128, step_ms=20.0),
)


async def ours(stack: AsyncExitStack, url: str) -> Send:
    spec = ClientSpec(api="completions", url=url, model="m", timeout_s=60)
    client = await stack.enter_async_context(open_client(spec, on_chunks=lambda _: None))
    request = Request(
        request_id=0,
        traffic_class="",
        session_id=0,
        turn=0,
        messages=(Message(role="user", content=tuple(range(16))),),
        input_tokens=16,
        output_tokens=4,
        keep_reply=True,
    )

    async def send() -> tuple[list[int], str]:
        reply = await client.send(request)
        assert reply.error is None, reply.message
        return reply.chunk_ns.tolist(), reply.text or ""

    return send


async def with_aiohttp(stack: AsyncExitStack, url: str) -> Send:
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=connector, auto_decompress=False)
    )

    async def send() -> tuple[list[int], str]:
        stream = ReplyStream(asked_tokens=4, keep=True)
        async with session.post(f"{url}/v1/completions", data=BODY, headers=JSON_TYPE) as response:
            while data := await response.content.readany():
                stream.feed(data, time.monotonic_ns())
        return stream.chunk_ns, stream.text or ""

    return send


async def raw(stack: AsyncExitStack, url: str) -> Send:
    client = RawHttp(url, BODY)

    async def send() -> tuple[list[int], str]:
        stream = await client.send()
        return stream.chunk_ns, stream.text or ""

    return send


async def with_httpx(stack: AsyncExitStack, url: str) -> Send:
    import httpx  # noqa: PLC0415  may be missing

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    session = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=60))

    async def send() -> tuple[list[int], str]:
        stream = ReplyStream(asked_tokens=4, keep=True)
        address = f"{url}/v1/completions"
        async with session.stream("POST", address, content=BODY, headers=JSON_TYPE) as response:
            async for data in response.aiter_raw():
                stream.feed(data, time.monotonic_ns())
        return stream.chunk_ns, stream.text or ""

    return send


async def with_pyreqwest(stack: AsyncExitStack, url: str) -> Send:
    from pyreqwest.client import (  # type: ignore[import-not-found]  # noqa: PLC0415  may be missing
        ClientBuilder,
    )

    client = await stack.enter_async_context(ClientBuilder().max_connections(1_000).build())

    async def send() -> tuple[list[int], str]:
        stream = ReplyStream(asked_tokens=4, keep=True)
        request = (
            client.post(f"{url}/v1/completions")
            .headers(JSON_TYPE)
            .body_bytes(BODY)
            .streamed_read_buffer_limit(0)
        )
        async with request.build_streamed() as response:
            while (data := await response.body_reader.read_chunk()) is not None:
                stream.feed(bytes(data), time.monotonic_ns())
        return stream.chunk_ns, stream.text or ""

    return send


OPENERS = {
    "ours": ours,
    "raw": raw,
    "aiohttp": with_aiohttp,
    "httpx": with_httpx,
    "pyreqwest": with_pyreqwest,
}


async def measure(name: str, url: str, case: Case) -> dict[str, float]:
    """Send all of a case's requests; returns this process's figures."""
    late_ns: list[int] = []
    left = case.requests
    async with AsyncExitStack() as stack:
        send = await OPENERS[name](stack, url)

        async def worker() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                stamps, text = await send()
                assert len(stamps) == case.tokens, (len(stamps), case.tokens)
                if case.step_ms:
                    wrote = (int(text[at : at + digits]) for at in range(0, len(text), digits))
                    late_ns.extend(stamp - then for stamp, then in zip(stamps, wrote, strict=True))

        digits = len(str(time.monotonic_ns()))
        await send()
        wall_s, cpu_s = time.monotonic(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(case.concurrency)))
        wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    figures = {
        "requests_per_s": case.requests / wall_s,
        "tokens_per_s": case.requests * case.tokens / wall_s,
        "cpu_us_per_request": 1e6 * cpu_s / case.requests,
        "cpu_us_per_token": 1e6 * cpu_s / case.requests / case.tokens,
    }
    if late_ns:
        p50, p99 = np.percentile(late_ns, [50, 99]) / 1e3
        figures |= {"late_us_p50": float(p50), "late_us_p99": float(p99)}
    return figures


def client(name: str, loop: str, url: str, case: Case) -> None:
    os.sched_setaffinity(0, {0})
    if loop == "uvloop":
        import uvloop  # noqa: PLC0415  may be missing

        figures = uvloop.run(measure(name, url, case))
    else:
        figures = asyncio.run(measure(name, url, case))
    print(json.dumps(figures))


def one(name: str, loop: str, number: int) -> dict[str, float]:
    case = CASES[number]
    module = ["tests.loadgen.trivial_server", str(case.tokens), "1", str(case.step_ms)]
    server = subprocess.Popen(
        ["taskset", "-c", "1", sys.executable, "-m", *module], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        arguments = ["--client", name, loop, url, str(number)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.http_clients", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        server.terminate()
        server.wait()
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--client", nargs=4)
    arguments = parser.parse_args()
    if arguments.client:
        name, loop, url, number = arguments.client
        client(name, loop, url, CASES[int(number)])
        return
    for number, case in enumerate(CASES):
        print(case)
        for name in arguments.names:
            if name not in ("ours", "raw") and importlib.util.find_spec(name) is None:
                print(f"  {name}: not installed")
                continue
            for loop in ("asyncio", "uvloop"):
                figures = one(name, loop, number)
                words = "  ".join(f"{key} {value:,.1f}" for key, value in figures.items())
                print(f"  {name:10} {loop:8} {words}", flush=True)


if __name__ == "__main__":
    main()
