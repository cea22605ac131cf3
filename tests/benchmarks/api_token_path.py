"""Microseconds of the API's process for a streamed token, by part: 128 streams, timing only.

    python -m tests.benchmarks.api_token_path

A server as a user starts it, and one whose streams all go vLLM's way (`serving.plugin.
direct_streams` says which do); their clients are this process. The clock is slow enough that the
API's process is not full, and each token is a chunk. The processor's time of that process is read
from the system, of a window that begins when the process was at rest and all streams have begun;
its parts are those of `sampled_stacks`.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psutil
import uvloop

from tests.benchmarks.sampled_stacks import PATH as SAMPLES_PATH
from tests.benchmarks.sampled_stacks import SampledPlainStacks, SampledStacks
from tests.benchmarks.stream_load import StreamCounts, connected, post
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

STREAMS: Final = 128
TOKENS_MAX: Final = 3_000
WINDOW_S: Final = 8.0
_REST_SHARE: Final = 0.03
"""Of a processor: a process that takes less is at rest; measured with none asking, 0.005 or less.

After its start it has still to do, for a minute where kernels are compiled anew. That would be in
the window's time, and cannot be taken out of it: it ends at some moment of its own.
"""
_REST_TIMEOUT_S: Final = 180.0

MODEL: Final = "qwen3-30b-a3b"
ARGUMENTS: Final = (
    *("--model", MODEL, "--weights", "none", "--chips", "4", "--clock", "dilated:2"),
    *("--max-model-len", "4096", "--max-num-seqs", "64", "--disable-uvicorn-access-log"),
)
BODIES: Final[dict[str, tuple[str, Callable[[int], dict[str, Any]]]]] = {
    "completions": (
        "/v1/completions",
        lambda index: {"prompt": [300 + (13 * at + 7 * index) % 700 for at in range(64)]},
    ),
    "chat": (
        "/v1/chat/completions",
        lambda index: {"messages": [{"role": "user", "content": f"Tell me of the sea, {index}."}]},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiBudget:
    """Of a window: chunks, processor microseconds of the API's process for each, and by part."""

    chunks: int
    us: float
    system_us: float
    parts_us: dict[str, float]

    def line(self) -> str:
        """For people."""
        parts = ", ".join(
            f"{name} {us:.1f}" for name, us in sorted(self.parts_us.items(), key=lambda p: -p[1])
        )
        return (
            f"{self.us:.1f} us a token, {self.system_us:.1f} of it the system's ({parts}); "
            f"{self.chunks:,} tokens"
        )


def measured(server: ServerProcess, api: str, *, window_s: float = WINDOW_S) -> ApiBudget:
    """The budget of `STREAMS` streams of `api`."""
    return uvloop.run(_measured(server, api, window_s))


@contextmanager
def sampled_server(middleware: type[SampledStacks]) -> Iterator[ServerProcess]:
    """A server with `middleware`, once it is at rest."""
    named = ("--middleware", f"{middleware.__module__}.{middleware.__qualname__}")
    with started(ULTRASERVE, *ARGUMENTS, *named) as server:
        server.wait_ready()
        wait_at_rest(psutil.Process(server.pid))
        yield server


def wait_at_rest(process: psutil.Process) -> None:
    """Wait until `process` has done what its start left to do.

    Raises:
        TimeoutError: it has not after `_REST_TIMEOUT_S`.
    """
    deadline_s = time.monotonic() + _REST_TIMEOUT_S
    while (share := process.cpu_percent(interval=2.0) / 100) > _REST_SHARE:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the idle API process takes {share:.0%} of a processor")


async def _measured(server: ServerProcess, api: str, window_s: float) -> ApiBudget:
    counts = StreamCounts()
    path, body = BODIES[api]
    process = psutil.Process(server.pid)
    connections = [await connected(server.url, counts) for _ in range(STREAMS)]
    for index, connection in enumerate(connections):
        asked = {"model": MODEL, "max_tokens": TOKENS_MAX, "ignore_eos": True, "stream": True}
        connection.send(post(server.url, path, asked | body(index)), TOKENS_MAX)
    while len(counts.first_chunk_s) < STREAMS:
        assert not counts.failures, counts.failures[:3]
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(_samples, server)
    chunks = counts.chunks
    user_s, system_s = await _spent_s(process, window_s)
    chunks = counts.chunks - chunks
    ticks = await asyncio.to_thread(_samples, server)
    for connection in connections:
        connection.close()
    us = 1e6 * (user_s + system_s) / chunks
    whole = sum(ticks.values())
    return ApiBudget(
        chunks=chunks,
        us=us,
        system_us=1e6 * system_s / chunks,
        parts_us={name: us * share / whole for name, share in ticks.items()},
    )


async def _spent_s(process: psutil.Process, window_s: float) -> tuple[float, float]:
    """Processor seconds of a process in a window: the user's and the system's."""
    before = process.cpu_times()
    await asyncio.sleep(window_s)
    after = process.cpu_times()
    return after.user - before.user, after.system - before.system


def _samples(server: ServerProcess) -> dict[str, int]:
    with urllib.request.urlopen(f"{server.url}{SAMPLES_PATH}") as answer:
        ticks: dict[str, int] = json.load(answer)
    return ticks


def run() -> None:
    """Print a line for each API and way."""
    for way, middleware in (("direct", SampledStacks), ("vLLM's way", SampledPlainStacks)):
        with sampled_server(middleware) as server:
            for api in BODIES:
                print(f"API, {api}, {way}: {measured(server, api).line()}", flush=True)
                time.sleep(2.0)


if __name__ == "__main__":
    run()
