"""A light client that sends far more than a server can take, and notes what came of each request.

One process, one session; an answer is not parsed but for its first bytes and its status.
"""

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
import numpy as np


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What all requests of one class are."""

    model: str
    prompt_tokens: int
    answer_tokens: int
    batch: bool = False

    def body(self, seed: int) -> dict[str, object]:
        tokens = np.random.default_rng(seed).integers(100, 1_000, self.prompt_tokens)
        return {
            "model": self.model,
            "prompt": [int(token) for token in tokens],
            "max_tokens": self.answer_tokens,
            "ignore_eos": True,
            "stream": not self.batch,
            "temperature": 0.0,
        }


@dataclass(kw_only=True)
class Seen:
    """Wall seconds from sending to the first bytes of what was answered, and the statuses."""

    first_wall_s: list[float] = field(default_factory=list)
    refusal_wall_s: list[float] = field(default_factory=list)
    finished: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    without_retry_after: int = 0
    failures: list[str] = field(default_factory=list)


async def send(session: aiohttp.ClientSession, ask: Ask, seed: int, seen: Seen) -> None:
    """Send one request and read its answer to the end."""
    headers = {"x-ultraserve-class": "batch"} if ask.batch else {}
    sent_s = time.monotonic()
    try:
        async with session.post("/v1/completions", json=ask.body(seed), headers=headers) as answer:
            seen.statuses[answer.status] = seen.statuses.get(answer.status, 0) + 1
            if answer.status != 200:
                await answer.read()
                seen.refusal_wall_s.append(time.monotonic() - sent_s)
                seen.without_retry_after += "Retry-After" not in answer.headers
                return
            first = await answer.content.readany()
            seen.first_wall_s.append(time.monotonic() - sent_s)
            whole = first + await answer.read()
            if b'{"error"' in whole:
                seen.failures.append(whole[-300:].decode(errors="replace"))
            seen.finished += b"[DONE]" in whole or ask.batch
    except (aiohttp.ClientError, TimeoutError) as error:
        seen.failures.append(repr(error))


def session_to(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=600),
    )


async def saturate(url: str, ask: Ask, *, at_once: int, wall_s: float) -> float:
    """Requests that end per wall second while `at_once` are always under way."""
    seen, end_s = Seen(), time.monotonic() + wall_s
    async with session_to(url) as session:

        async def worker(number: int) -> None:
            seed = number
            while time.monotonic() < end_s:
                await send(session, ask, seed, seen)
                seed += at_once

        began_s = time.monotonic()
        await asyncio.gather(*(worker(number) for number in range(at_once)))
        return seen.finished / (time.monotonic() - began_s)


async def overload(
    url: str, asks: dict[str, tuple[Ask, float]], *, wall_s: float, seed: int
) -> dict[str, Seen]:
    """Send each ask at its rate, with Poisson arrivals, whatever becomes of them."""
    seen = {name: Seen() for name in asks}
    rng = np.random.default_rng(seed)
    arrivals = sorted(
        (float(at_s), name, number)
        for name, (_, per_s) in asks.items()
        for number, at_s in enumerate(
            np.cumsum(rng.exponential(1 / per_s, int(3 * per_s * wall_s)))
        )
        if at_s < wall_s
    )
    began_s, tasks = time.monotonic(), []
    async with session_to(url) as session:
        for at_s, name, number in arrivals:
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            work = send(session, asks[name][0], number, seen[name])
            tasks.append(asyncio.create_task(work))
        await asyncio.gather(*tasks)
    return seen
