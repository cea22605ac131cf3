"""A service before small replicas: HTTP servers in this process whose text a seed decides.

A replica's pieces are cut at places of its own, as those of an engine under load are.
"""

import asyncio
import json
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from aiohttp import web

from serving.server.batch.batch_settings import BatchSettings
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.server.replicas.live_replica import LiveReplica
from serving.server.replicas.live_replicas import LiveReplicas
from serving.server.replicas.replica_place import ReplicaPlace
from serving.server.replicas.replica_roles import parse_roles
from serving.server.replicas.replica_service import ReplicaService, ServiceSettings
from serving.server.replicas.role_changes import RoleChanges
from tests.e2e.server_process import HOST, free_port

DILATION = 2.0
PROMPT_TOKENS = 5


def made_text(prompt: str, seed: int | None, tokens: int) -> str:
    draw = random.Random(f"{prompt} {seed}")
    return "".join(draw.choice("abcdefgh") for _ in range(tokens))


class SmallReplica:
    """One replica's process and server. `refuses` is a status with which it answers requests;
    `gap_s` its time between two pieces of a stream.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.kv_port = 7000 + number
        self.gap_s = 0.0
        self.refuses: int | None = None
        self.not_ready: str | None = None
        self.is_silent = False
        self.hung_s: float | None = None  # since when its engine hangs
        self.starts = 0
        self.fails_to_start = False
        self.answered: list[dict[str, Any]] = []
        self.cut_off = 0
        self._ended = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._open: set[asyncio.Transport] = set()
        self._chance = random.Random(number)

    # ---- as ReplicaProcess

    @property
    def is_started(self) -> bool:
        return self.starts > 0

    async def start(self) -> tuple[int, str]:
        self.starts += 1
        self.hung_s = None
        self._ended.clear()
        if self.fails_to_start:
            self._ended.set()
        app = web.Application()
        app.add_routes(
            [
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        return 1000 + self.number, f"http://{HOST}:{port}"

    async def ended(self, wall_s: float | None = None) -> int | None:
        try:
            await asyncio.wait_for(self._ended.wait(), wall_s)
        except TimeoutError:
            return None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        return -9

    def signal(self, number: signal.Signals) -> None:
        """End it, and every connection in the middle of what it says."""
        del number
        for transport in list(self._open):
            transport.abort()
        self._ended.set()

    # ---- its server

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._ended.is_set() and request.transport is not None:
            request.transport.abort()
        if self.is_silent:
            await asyncio.sleep(60.0)
        return web.Response(text=self.not_ready or "ok", status=503 if self.not_ready else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(
            text="# HELP vllm:steps_total Steps.\n# TYPE vllm:steps_total counter\n"
            f'vllm:steps_total{{engine="0"}} {self.number + 1}.0\n'
            "# HELP ultraserve_admission_in_flight Inside.\n"
            "# TYPE ultraserve_admission_in_flight gauge\nultraserve_admission_in_flight 9.0\n"
        )

    async def _models(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"object": "list", "data": [{"id": "small"}]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if not request.headers["Authorization"].startswith("Bearer us-"):
            return web.Response(status=401)
        if self.refuses is not None:
            error = {"error": {"message": f"refused by {self.number}", "code": "ttft_target"}}
            return web.json_response(error, status=self.refuses)
        asked = await request.json()
        self.answered.append({**asked, "class": request.headers.get("x-ultraserve-class")})
        transport = request.transport
        assert transport is not None
        if self._ended.is_set():
            transport.abort()
        self._open.add(transport)
        try:
            return await self._answer(request, asked)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        finally:
            self._open.discard(transport)

    async def _answer(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        tokens = asked["max_tokens"]
        held = None
        if (asked.get("kv_transfer_params") or {}).get("do_remote_decode"):
            held = {"do_remote_prefill": True, "remote_engine_id": f"e{self.number}"}
        text = made_text(str(asked["prompt"]), asked.get("seed"), tokens)
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
        same = {"id": f"cmpl-{self.number}", "created": self.number, "model": "small"}
        if not asked.get("stream"):
            await asyncio.sleep(self.gap_s * tokens)
            choice = {"index": 0, "text": text, "finish_reason": "length"}
            answer = {**same, "choices": [choice], "usage": usage, "kv_transfer_params": held}
            return web.json_response(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while text:
            while self.hung_s is not None:
                await asyncio.sleep(0.01)
            size = self._chance.randint(1, 3)
            piece, text = text[:size], text[size:]
            finish = None if text else "length"
            choice = {"index": 0, "text": piece, "finish_reason": finish}
            await _send(response, {**same, "choices": [choice]})
            await asyncio.sleep(self.gap_s)
        if (asked.get("stream_options") or {}).get("include_usage"):
            version = {"system_fingerprint": f"v{self.number}"}
            await _send(response, {**same, "choices": [], "usage": usage, **version})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, said: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(said).encode() + b"\n\n")


@dataclass(frozen=True, kw_only=True)
class SmallService:
    replicas: Sequence[SmallReplica]
    live: LiveReplicas
    roles: RoleChanges
    http: httpx.AsyncClient
    running: "asyncio.Task[int]"
    ends: list[int] = field(default_factory=list)

    async def ready(self, count: int) -> None:
        async with asyncio.timeout(20.0):
            while len(self.live.ready) != count:
                await asyncio.sleep(0.01)

    async def metric(self, sample: str) -> float:
        page = (await self.http.get("/metrics")).text
        (line,) = [each for each in page.splitlines() if each.startswith(f"{sample} ")]
        return float(line.rpartition(" ")[2])

    async def replays(self) -> dict[tuple[str, str], float]:
        """By `begun` and reason; without those of which there are none."""
        page = (await self.http.get("/metrics")).text
        found = re.findall(
            r'^ultraserve_replays_total\{begun="(\w+)",reason="(\w+)"\} (\S+)$', page, re.MULTILINE
        )
        assert len(found) == 8, "each is there from the start"
        return {(begun, reason): float(count) for begun, reason, count in found if float(count)}


@asynccontextmanager
async def small_service(
    *,
    count: int = 2,
    router: str = "least-loaded",
    ready: bool = True,
    batches: Path | None = None,
    silence_s_max: float = 60.0,
    roles: str | None = None,
    step_tokens: int = 100,
    dilation: float = DILATION,
    **gateway: Any,
) -> AsyncIterator[SmallService]:
    """A running service; `gateway` are its GatewaySettings, `step_tokens` a replica's."""
    asked = parse_roles(roles, count)
    role_of = (None,) * count if asked is None else asked.first
    follows_load = asked is not None and asked.follow_load
    places = tuple(
        ReplicaPlace(
            number=number,
            ultraserver="0",
            first_chip=number,
            chips=1,
            visible_cores="0-3",
            control_port=0,
            console_port=0,
            role=role_of[number],
        )
        for number in range(count)
    )
    settings = ServiceSettings(
        host=HOST,
        port=free_port(),
        gateway=GatewaySettings(**gateway),
        places=places,
        words=("serve",),
        router=router,
        dilation=dilation,
        context_tokens=512,
        batches=BatchSettings(batch_directory=batches),
        replica_seats=4,
        replica_step_tokens=step_tokens if follows_load else None,
    )
    replicas = [SmallReplica(number) for number in range(count)]
    key = {"Authorization": "Bearer us-internal"}
    async with aiohttp.ClientSession(headers=key) as session:
        live = LiveReplicas(places, replicas, session, router=router, silence_s_max=silence_s_max)  # type: ignore[arg-type]
        service = ReplicaService(settings, live, session, key="us-internal")

        async def engine_age_s(replica: LiveReplica) -> float:
            hung_s = replicas[replica.place.number].hung_s
            return 0.0 if hung_s is None else time.monotonic() - hung_s

        live.engine_age_s = engine_age_s
        live.start()
        running = asyncio.create_task(service.run())
        url = f"http://{HOST}:{settings.port}"
        async with httpx.AsyncClient(base_url=url, timeout=20.0, trust_env=False) as http:
            made = SmallService(
                replicas=replicas, live=live, roles=service.roles, http=http, running=running
            )
            if ready:
                await made.ready(count)
            try:
                yield made
            finally:
                service._server.should_exit = service._server.force_exit = True
                await asyncio.gather(running, return_exceptions=True)
                await live.stop(at_once=True)
