"""Batches before vLLM's own app and the small AsyncLLM, for OpenAI's client."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import openai
from prometheus_client import CollectorRegistry

from serving.access.key_ring import KeyRing
from serving.server.batch.batch_api import BatchApi
from serving.server.batch.batch_record import BatchStatus
from serving.server.batch.batch_runner import BatchRunner
from serving.server.batch.batch_settings import BatchSettings
from serving.server.batch.batch_store import BatchStore
from serving.server.gateway.http.inner_request import InnerRequest
from serving.telemetry.batch_metrics import BatchMetrics
from tests.serving.server.gateway.http.served_http import MODEL, HttpServer, http_server
from tests.serving.server.gateway.small_async_llm import SEATS

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
LIVE = [status for status in BatchStatus if not status.is_over]
OVER = [status for status in BatchStatus if status.is_over]


def metrics() -> BatchMetrics:
    return BatchMetrics(live=LIVE, over=OVER, registry=CollectorRegistry())


@dataclass
class Wall:
    """A clock that tests turn ahead."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass(frozen=True, kw_only=True)
class BatchServer:
    http: HttpServer
    store: BatchStore
    runner: BatchRunner
    client: openai.AsyncOpenAI
    wall: Wall

    async def upload(self, content: bytes, client: openai.AsyncOpenAI | None = None) -> str:
        client = client or self.client
        file = await client.files.create(file=("night.jsonl", content), purpose="batch")
        return file.id

    async def create(self, lines: Sequence[dict[str, Any]], window: Any = "24h") -> str:
        file_id = await self.upload(jsonl(lines))
        batch = await self.client.batches.create(
            input_file_id=file_id, endpoint=CHAT, completion_window=window
        )
        return batch.id

    async def ended(self, batch_id: str) -> Any:
        while True:
            batch = await self.client.batches.retrieve(batch_id)
            if BatchStatus(batch.status).is_over:
                return batch
            await asyncio.sleep(0.01)

    async def lines(self, file_id: str | None) -> dict[str, Any]:
        """The lines of a file by custom_id; no two have the same."""
        if file_id is None:
            return {}
        content = await self.client.files.content(file_id)
        lines = [json.loads(line) for line in content.text.splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines)
        return found


def chat(custom_id: str, **given: Any) -> dict[str, Any]:
    """A request for a short answer."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
        "ignore_eos": True,
    }
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body | given}


def jsonl(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def batch_server(
    directory: Path, *, key: str = "none", keys: KeyRing | None = None, **given: Any
) -> AsyncIterator[BatchServer]:
    """The batches of `directory`; `given` are the HTTP server's, and BatchSettings'."""
    limits = {name: given.pop(name) for name in [*given] if name.startswith("batch_")}
    ring = keys or KeyRing()
    wall = Wall()
    async with http_server(keys=ring, **given) as http:
        store = BatchStore(BatchSettings(batch_directory=directory, **limits), wall_s=wall)
        runner = BatchRunner(
            store,
            make=lambda path, request, client, name: InnerRequest(
                http.app, path, request.body, client=client, request_id=name
            ),
            ask=http.gateway.answer_inner,
            client_of=ring.client_named,
            seats=lambda: SEATS,
            body_bytes_max=http.bodies.bytes_max,
            metrics=metrics(),
            wall_s=wall,
        )
        http.gateway.beside = BatchApi(store, runner, http.bodies, wall_s=wall)
        await runner.start()
        client = http.client(key, max_retries=0)
        try:
            yield BatchServer(http=http, store=store, runner=runner, client=client, wall=wall)
        finally:
            await runner.stop()
            await client.close()
