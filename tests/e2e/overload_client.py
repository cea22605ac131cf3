"""A light client that sends far more than a server can take, and notes each outcome.

One process, one connection pool or channel; of an answer only its first bytes and status are read.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from smg_grpc_proto import vllm_engine_pb2 as pb  # type: ignore[import-untyped]
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc  # type: ignore[import-untyped]

TOO_LATE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    model: str
    prompt_tokens: int
    answer_tokens: int
    batch: bool = False
    by_grpc: bool = False

    def _prompt(self, seed: int) -> list[int]:
        drawn = np.random.default_rng(seed).integers(100, 1_000, self.prompt_tokens)
        return [int(token) for token in drawn]

    def call(self, seed: int) -> pb.GenerateRequest:
        return pb.GenerateRequest(
            request_id=f"overload-{seed}-{time.monotonic_ns()}",
            tokenized=pb.TokenizedInput(input_ids=self._prompt(seed)),
            sampling_params=pb.SamplingParams(max_tokens=self.answer_tokens, ignore_eos=True),
            stream=True,
        )

    def body(self, seed: int) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": self._prompt(seed),
            "max_tokens": self.answer_tokens,
            "ignore_eos": True,
            "stream": not self.batch,
            "temperature": 0.0,
        }


@dataclass(kw_only=True)
class Seen:
    """Wall seconds from sending to the first bytes of an answer, and statuses (HTTP's, or gRPC's
    names). `without_retry_after` are refusals without a retry time.
    """

    first_wall_s: list[float] = field(default_factory=list)
    refusal_wall_s: list[float] = field(default_factory=list)
    finished: int = 0
    statuses: dict[int | str, int] = field(default_factory=dict)
    without_retry_after: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, status: int | str) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    url: str
    grpc_address: str


@dataclass(frozen=True, kw_only=True)
class _Way:
    session: aiohttp.ClientSession
    stub: Any


async def _send(way: _Way, ask: Ask, seed: int, seen: Seen) -> None:
    if ask.by_grpc:
        await _send_grpc(way.stub, ask, seed, seen)
    else:
        await _send_http(way.session, ask, seed, seen)


async def _send_grpc(stub: Any, ask: Ask, seed: int, seen: Seen) -> None:
    sent_s, first_s = time.monotonic(), None
    last = ""
    try:
        async for answer in stub.Generate(ask.call(seed), timeout=TOO_LATE_S):
            first_s = first_s or time.monotonic()
            last = answer.WhichOneof("response")
    except grpc.aio.AioRpcError as error:
        seen.count(error.code().name)
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and first_s is None:
            seen.refusal_wall_s.append(time.monotonic() - sent_s)
            seen.without_retry_after += not _says_when(error)
        else:
            seen.failures.append(repr(error))
        return
    seen.count("OK")
    seen.finished += last == "complete"
    if first_s is not None:
        seen.first_wall_s.append(first_s - sent_s)


def _says_when(error: grpc.aio.AioRpcError) -> bool:
    status = rpc_status.from_call(error)
    retry = error_details_pb2.RetryInfo.DESCRIPTOR
    return status is not None and any(each.Is(retry) for each in status.details)


async def _send_http(session: aiohttp.ClientSession, ask: Ask, seed: int, seen: Seen) -> None:
    headers = {"x-ultraserve-class": "batch"} if ask.batch else {}
    sent_s = time.monotonic()
    try:
        async with session.post("/v1/completions", json=ask.body(seed), headers=headers) as answer:
            seen.count(answer.status)
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


@asynccontextmanager
async def _way_to(endpoints: Endpoints) -> AsyncIterator[_Way]:
    options = [("grpc.enable_http_proxy", 0)]
    async with (
        aiohttp.ClientSession(
            base_url=endpoints.url,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=TOO_LATE_S),
        ) as session,
        grpc.aio.insecure_channel(endpoints.grpc_address, options) as channel,
    ):
        yield _Way(session=session, stub=pb_grpc.VllmEngineStub(channel))


async def one_by_one(endpoints: Endpoints, ask: Ask, count: int) -> Seen:
    seen = Seen()
    async with _way_to(endpoints) as way:
        for number in range(count):
            await _send(way, ask, number, seen)
    return seen


async def saturate(endpoints: Endpoints, ask: Ask, *, at_once: int, wall_s: float) -> float:
    """Requests that end per wall second while `at_once` are always under way."""
    seen, end_s = Seen(), time.monotonic() + wall_s
    async with _way_to(endpoints) as way:

        async def worker(number: int) -> None:
            seed = number
            while time.monotonic() < end_s:
                await _send(way, ask, seed, seen)
                seed += at_once

        began_s = time.monotonic()
        await asyncio.gather(*(worker(number) for number in range(at_once)))
        return seen.finished / (time.monotonic() - began_s)


async def overload(
    endpoints: Endpoints, asks: Mapping[str, tuple[Ask, float]], *, wall_s: float, seed: int
) -> dict[str, Seen]:
    """Send each ask at its rate, with Poisson arrivals, in an open loop."""
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
    async with _way_to(endpoints) as way:
        for at_s, name, number in arrivals:
            await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
            work = _send(way, asks[name][0], number, seen[name])
            tasks.append(asyncio.create_task(work))
        await asyncio.gather(*tasks)
    return seen
