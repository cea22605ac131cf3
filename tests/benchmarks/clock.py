"""Cost of `--clock auto`: tokens per wall second against the same server at full speed.

Full speed is `--clock real` on a host slower than the machine: no step waits, and the shortfall is
lag. It is measured before and after, for hosts vary. The load is a closed loop of streams. Printed:
tokens per wall second (vLLM's count), their ratio, step time and its computing share, dilation,
number of epochs, and the share of emulated time that was lag. On a host whose speed drifts the
ratio of computing shares says more: each is of one moment.

`python -m tests.benchmarks clock` uses 4 chips, timed only; `clock chips=144 requests=144
weights=small clocks=real,auto` needs 12 GB and some minutes.
"""

import asyncio
import signal
import statistics
import sys
import time
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

WARM_UP_S = 12.0
"""Enough for the clock to find its dilation: an epoch lasts at least 2 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`requests` at a time on `chips`; `weights` none is timed only, small is computed."""

    chips: int = 4
    requests: int = 64
    weights: str = "none"
    tokens: int = 300
    seconds: float = 20.0
    clocks: tuple[str, ...] = ("real", "auto", "real")

    @property
    def arguments(self) -> tuple[str, ...]:
        model = ("--model", "gpt-oss-120b", "--weights", "none") if self.weights == "none" else ()
        return (*model, "--chips", str(self.chips), "--max-model-len", "1024")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    at_s: float
    tokens: float
    emulated_s: float
    lag_s: float
    dilation: float
    epoch: float
    steps: float
    compute_wall_s: float


async def read(session: aiohttp.ClientSession) -> Reading:
    async with session.get("/metrics") as answer:
        page = await answer.text()
    at_s = time.monotonic()
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            values.setdefault(sample.name, sample.value)
    return Reading(
        at_s=at_s,
        tokens=values["vllm:generation_tokens_total"],
        emulated_s=values["ultraserve_emulated_seconds_total"],
        lag_s=values["ultraserve_lag_seconds_total"],
        dilation=values["ultraserve_clock_dilation"],
        epoch=values["ultraserve_clock_epoch"],
        steps=values["ultraserve_steps_total"],
        compute_wall_s=values["ultraserve_compute_wall_seconds_total"],
    )


async def ask_for_ever(session: aiohttp.ClientSession, model: str, load: Load) -> None:
    """One seat of the closed loop."""
    body = {
        "model": model,
        "prompt": [1 + number % 97 for number in range(32)],
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "stream": True,
    }
    while True:
        async with session.post("/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.content.iter_any():
                pass


async def measured(server: ServerProcess, load: Load) -> tuple[Reading, Reading]:
    """Readings at both ends of the measured time."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, timeout=timeout, connector=connector) as session:
        async with session.get("/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        places = [
            asyncio.create_task(ask_for_ever(session, model, load)) for _ in range(load.requests)
        ]
        await asyncio.sleep(WARM_UP_S)
        first = await read(session)
        await asyncio.sleep(load.seconds)
        last = await read(session)
        for place in places:
            place.cancel()
        ends = await asyncio.gather(*places, return_exceptions=True)
    failed = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]!r}")
    return first, last


def rates(load: Load, clock: str) -> tuple[float, float]:
    """Tokens per wall second with `clock`, and the computing share; prints the rest."""
    with started(ULTRASERVE, *load.arguments, "--clock", clock) as server:
        server.wait_ready()
        first, last = asyncio.run(measured(server, load))
        log = server.log() if clock == "auto" else ""
    found = (last.tokens - first.tokens) / (last.at_s - first.at_s)
    lag = (last.lag_s - first.lag_s) / (last.emulated_s - first.emulated_s)
    steps = last.steps - first.steps
    step_ms = 1e3 * (last.at_s - first.at_s) / steps
    compute_ms = 1e3 * (last.compute_wall_s - first.compute_wall_s) / steps
    print(
        f"--clock {clock}: {found:,.0f} tokens/s; a step every {step_ms:.2f} ms, {compute_ms:.2f} "
        f"of them for computing; {last.dilation:g} wall s per emulated s in epoch "
        f"{last.epoch:.0f}; {100 * lag:.1f} % of emulated time is lag",
        flush=True,
    )
    for line in log.splitlines():
        if "clock auto" in line:
            print(f"  {line.partition('clock auto: ')[2]}", flush=True)
    return found, compute_ms / step_ms


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no server stays behind
    given = dict(argument.split("=", 1) for argument in arguments)
    load = Load(
        chips=int(given.get("chips", 4)),
        requests=int(given.get("requests", 64)),
        weights=given.get("weights", "none"),
        tokens=int(given.get("tokens", 300)),
        seconds=float(given.get("seconds", 20)),
        clocks=tuple(given.get("clocks", "real,auto,real").split(",")),
    )
    print(f"{load.requests} requests at a time: {' '.join(load.arguments)}", flush=True)
    found = [(clock, rates(load, clock)) for clock in load.clocks]
    for at, words in enumerate(("tokens/s", "share of computing")):
        real, auto = (
            statistics.mean(pair[at] for clock, pair in found if clock == name)
            for name in ("real", "auto")
        )
        print(f"auto reaches {100 * auto / real:.0f} % of real, which never waits: by {words}")


if __name__ == "__main__":
    main(sys.argv[1:])
