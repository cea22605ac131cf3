"""Do API processes stand many clients? Errors, memory, and how soon it gets to a request.

    python -m tests.benchmarks api_load [--streams N] [--tokens N] [--seconds S] [--processes N]
    python -m tests.benchmarks api_load --only front [--chips N] [--clock CLOCK] [--first] ...

A server as a user starts it, timing only, with the fast engine and `--processes` API processes; its
clients are this process, on the same host. In turn:
`--streams` streams that are all open at once; requests of one token, and prompts of 1,000 tokens,
each sent when it is due. A probe that the gateway answers itself (`gateway_probe`) says how long a
request waits until admission sees it, since its event loop is the one that admits; and how much of
that is the wait of the probe, and of that loop where there is one alone, for a processor, which
other work of the host has. At `front` the clients ask smg before the engine (`ultraserve serve
--front smg`), which answers the probe by any of its threads, and its process is counted; the
engine's is counted apart in both. By default one server after the other is loaded.

The bars: no failures, memory that is not more after the second time, what is due done when it is
due, a probe's p99 below 5 ms. What takes processors is printed beside them, since clients, engine
and all else of the host share its cores.
"""

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import httpx
import psutil
import uvloop

from tests.benchmarks.front_arguments import NO_FRONT, front_arguments
from tests.benchmarks.stream_load import StreamConnection, StreamCounts, connected, post
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

MODEL: Final = "qwen3-30b-a3b"
ARGUMENTS: Final = (
    *("--model", MODEL, "--weights", "none"),
    *("--max-model-len", "2048", "--max-num-seqs", "2560", "--max-num-batched-tokens", "4096"),
    *("--engine", "fast"),
    "--disable-uvicorn-access-log",
)
ONE_TOKEN_PER_S: Final = 1_000.0
LONG_PER_S: Final = 200.0
LONG_TOKENS: Final = 1_000

_APP: Final = "app"
_SERVERS: Final = (_APP, "front")
_OPENED_AT_ONCE: Final = 500


class ProbeAnswer(NamedTuple):
    """When the probe was asked for, how long it took, and how long of that it waited for a
    processor.
    """

    began_s: float
    took_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """What the server made it wait."""
        return self.took_s - self.waited_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPhase:
    """What came of one phase.

    Memory of all API processes in MB, before and after, and processor time of theirs and of the
    clients'. `dilation` is the clock's in the end: wall seconds per emulated second.
    """

    name: str
    wall_s: float
    counts: StreamCounts
    probes: list[ProbeAnswer]
    memory_mb: tuple[float, float]
    api_cpu_s: float
    engine_cpu_s: float
    clients_cpu_s: float
    dilation: float

    def line(self) -> str:
        """For people."""
        failures = self.counts.failures
        words = f" ({', '.join(sorted(set(failures))[:3])})" if failures else ""
        first = _percentiles(self.counts.first_chunk_s)
        probe = _percentiles([each.took_s for each in self.probes])
        own = _percentiles([each.own_s for each in self.probes])
        if (since_s := self.counts.all_open_s) is not None:
            later = [each.took_s for each in self.probes if each.began_s >= since_s]
            probe += f" ({_percentiles(later)} since all are open)"
        spent_s = self.api_cpu_s + self.engine_cpu_s + self.clients_cpu_s
        return (
            f"{self.name}: {self.counts.ended:,} ended and {len(failures):,} failed{words} in "
            f"{self.wall_s:.1f} s; p50 and p99 of the first chunk {first}, of a probe {probe}, "
            f"without the waits for a processor that are known {own}; "
            f"its processes {self.memory_mb[0]:.0f} and then {self.memory_mb[1]:.0f} MB, "
            f"{self.api_cpu_s:.1f} s of a processor; the engine's {self.engine_cpu_s:.1f} s, the "
            f"clients' {self.clients_cpu_s:.1f} s, together {spent_s / self.wall_s:.2f} of "
            f"{os.cpu_count()} cores; at a dilation of {self.dilation:.3g} in the end"
        )


def _percentiles(of_s: list[float]) -> str:
    if not of_s:
        return "none"
    ordered = sorted(of_s)
    p50, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"{1e3 * p50:.1f} and {1e3 * p99:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A server under load: its address, the path of a probe that is answered at once, the
    processes that serve HTTP, and its engine's. The first thread of `loop_pid` runs the event loop
    that answers; None where it is one of several (smg, or several API processes). If `goes_first`,
    all of these and the clients run before all other processes of the host while there is load.
    `clock_url` is the page with its clock.
    """

    url: str
    probe: str
    processes: list[psutil.Process]
    engine: list[psutil.Process]
    loop_pid: int | None = None
    goes_first: bool = False
    clock_url: str = ""

    def dilation(self) -> float:
        """The clock's now."""
        epochs = httpx.get(self.clock_url, trust_env=False).json()["epochs"]
        return float(epochs[-1]["dilation"])


def loaded(server: ServerProcess, url: str | None) -> Loaded:
    """A server that is asked at its own address, or at its front's `url`."""
    first = psutil.Process(server.pid)
    children = {each: " ".join(each.cmdline()) for each in first.children()}
    others, engine, fronts = (
        [each for each, words in children.items() if mark in words]
        for mark in ("APIServer", "EngineCore", "smg")
    )
    if url is None:
        processes = [first, *others]
        return Loaded(
            url=server.url,
            probe="/livez",
            processes=processes,
            engine=engine,
            loop_pid=None if others else first.pid,
        )
    return Loaded(url=url, probe="/liveness", processes=fronts, engine=engine)


class Clients:
    """Connections to one server, kept from request to request."""

    def __init__(self, url: str, counts: StreamCounts) -> None:
        self._url = url
        self.counts = counts
        self._idle: list[StreamConnection] = []

    async def ask(self, message: bytes, tokens: int | None = None) -> None:
        """Send a request, and wait for the end of its stream."""
        connection = self._idle.pop() if self._idle else await connected(self._url, self.counts)
        if await connection.send(message, tokens):
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()


def completion(url: str, index: int, *, prompt_tokens: int, tokens: int) -> bytes:
    """A stream's request, as text; no two prompts begin alike."""
    number = f"{index:05}"
    prompt = number + " the" * (prompt_tokens - len(number))  # a digit is a token, a word too
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": tokens}
    return post(url, "/v1/completions", asked | {"ignore_eos": True, "stream": True})


async def all_open(url: str, clients: Clients, *, streams: int, tokens: int) -> None:
    """Open `streams` streams, as fast as the server begins them, and wait for their ends."""
    asked, counts = [], clients.counts
    for index in range(streams):
        while index - len(counts.first_chunk_s) - len(counts.failures) >= _OPENED_AT_ONCE:
            await asyncio.sleep(0.005)  # a listening socket keeps 2,048 for its server
        message = completion(url, index, prompt_tokens=16, tokens=tokens)
        asked.append(asyncio.ensure_future(clients.ask(message, tokens)))
    while len(counts.first_chunk_s) + len(counts.failures) < streams:
        await asyncio.sleep(0.01)
    counts.all_open_s = time.monotonic()
    print(f"{counts.open:,} of {streams:,} streams are open at once", flush=True)
    await asyncio.gather(*asked)


async def when_due(
    url: str, clients: Clients, *, per_s: float, seconds: float, prompt_tokens: int
) -> None:
    """Send requests of one token at a rate, whatever has become of those before."""
    asked, began_s = [], time.monotonic()
    for index in range(int(per_s * seconds)):
        late_s = began_s + index / per_s - time.monotonic()
        if late_s > 0:
            await asyncio.sleep(late_s)
        message = completion(url, index, prompt_tokens=prompt_tokens, tokens=1)
        asked.append(asyncio.ensure_future(clients.ask(message, 1)))
    await asyncio.gather(*asked)


@asynccontextmanager
async def probed(server: Loaded) -> AsyncIterator[list[ProbeAnswer]]:
    """Probe the server meanwhile; the list has the answers afterwards. Raises RuntimeError if the
    probe ended.
    """
    words = ["-m", "tests.benchmarks.gateway_probe", server.url, server.probe]
    if server.loop_pid is not None:
        words.append(str(server.loop_pid))
    answers: list[ProbeAnswer] = []
    with tempfile.TemporaryFile() as said:  # a pipe would fill up until it is read
        probe = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=said)
        try:
            yield answers
            if probe.returncode is not None:
                raise RuntimeError(f"the probe of {server.url} ended with code {probe.returncode}")
        finally:
            if probe.returncode is None:
                probe.terminate()
            await probe.wait()
        said.seek(0)
        whole = (line for line in said.read().decode().splitlines(True) if line[-1] == "\n")
        answers += [ProbeAnswer(*map(float, line.split())) for line in whole]


async def phase(
    server: Loaded, name: str, counts: StreamCounts, load: Coroutine[Any, Any, None]
) -> LoadPhase:
    """Run `load`, whose clients count in `counts`."""
    processes, engine = server.processes, server.engine
    all_processes = [psutil.Process(), *processes, *engine]
    if server.goes_first:
        _schedule(all_processes, os.SCHED_RR)
    before_mb, cpu_s = _spent(processes)
    _, engine_s = _spent(engine)
    began_s, own_s = time.monotonic(), time.process_time()
    try:
        async with probed(server) as probes:
            await load
    finally:
        if server.goes_first:
            _schedule(all_processes, os.SCHED_OTHER)
    after_mb, after_cpu_s = _spent(processes)
    _, after_engine_s = _spent(engine)
    return LoadPhase(
        name=name,
        wall_s=time.monotonic() - began_s,
        counts=counts,
        probes=probes,
        memory_mb=(before_mb, after_mb),
        api_cpu_s=after_cpu_s - cpu_s,
        engine_cpu_s=after_engine_s - engine_s,
        clients_cpu_s=time.process_time() - own_s,
        dilation=server.dilation(),
    )


def _schedule(processes: list[psutil.Process], policy: int) -> None:
    """Let all threads be run by a policy of the system's, and those that they start."""
    parameters = os.sched_param(int(policy == os.SCHED_RR))
    for process in processes:
        for thread in process.threads():
            os.sched_setscheduler(thread.id, policy, parameters)


def _spent(processes: list[psutil.Process]) -> tuple[float, float]:
    """Memory in MB and processor seconds."""
    times = [each.cpu_times() for each in processes]
    memory_mb = sum(each.memory_info().rss for each in processes) / 1e6
    return memory_mb, sum(each.user + each.system for each in times)


async def measure(server: Loaded, *, streams: int, tokens: int, seconds: float) -> int:
    """Print the phases; returns the number of requests that failed."""
    url, failed = server.url, 0
    for again in (
        ("", ", again") if streams else ()
    ):  # what the second adds to the memory is not kept for a request
        counts = StreamCounts()
        clients = Clients(url, counts)
        load = all_open(url, clients, streams=streams, tokens=tokens)
        ended = await phase(server, f"{streams:,} open streams{again}", counts, load)
        clients.close()
        print(ended.line(), flush=True)
        failed += len(counts.failures)
    for name, per_s, prompt_tokens in (
        (f"{ONE_TOKEN_PER_S:,.0f} requests/s of one token", ONE_TOKEN_PER_S, 16),
        (f"{LONG_PER_S:,.0f} prompts/s of {LONG_TOKENS:,} tokens", LONG_PER_S, LONG_TOKENS),
    ):
        counts = StreamCounts()
        clients = Clients(url, counts)
        load = when_due(url, clients, per_s=per_s, seconds=seconds, prompt_tokens=prompt_tokens)
        ended = await phase(server, name, counts, load)
        clients.close()
        print(ended.line(), flush=True)
        failed += len(counts.failures)
    return failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="api_load", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=300, help="of each of them")
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals")
    parser.add_argument("--processes", type=int, default=1, help="of the API")
    parser.add_argument("--only", choices=_SERVERS, help="of the two servers")
    parser.add_argument(
        "--first", action="store_true", help="run before the host's other processes (root)"
    )
    parser.add_argument("--chips", type=int, default=4, help="emulated, which bound long prompts")
    parser.add_argument("--clock", default="auto", help="the server's; auto is near saturation")
    args = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    failed = 0
    for name in _SERVERS if args.only is None else (args.only,):
        print(f"-- asked at {name}", flush=True)
        failed += _load(name, args)
    return int(failed > 0)


def _load(name: str, args: argparse.Namespace) -> int:
    """Load a server; returns the number of requests that failed."""
    count = str(args.processes if name == _APP else 1)
    front = NO_FRONT if name == _APP else front_arguments()
    asked = ("--chips", str(args.chips), "--api-server-count", count, "--clock", args.clock)
    arguments = (*ARGUMENTS, *asked, *front.arguments)
    with started(ULTRASERVE, *arguments, environment=front.environment) as server:
        server.wait_ready()
        all_of_them = f"all of {count} API processes"
        server.wait_until(lambda: server.log().count("startup complete") == int(count), all_of_them)
        front.wait_ready()
        under_load = replace(
            loaded(server, front.url), goes_first=args.first, clock_url=f"{server.url}/clock"
        )
        load = measure(under_load, streams=args.streams, tokens=args.tokens, seconds=args.seconds)
        return uvloop.run(load)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
