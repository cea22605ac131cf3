"""Batches of OpenAI's client before vLLM's own app: files, answers, ends, restarts."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import openai
import pytest

from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.policy.day_night.night_work import NightShare
from tests.serving.server.batch.served_batch import BatchServer, batch_server, chat, jsonl, until

pytestmark = pytest.mark.long

SECRETS = ("us-0123456789012345678901234567890123456789", "us-" + "9" * 40)
DAY = NightShare(may_run=False, held_groups=0, words="it is day")
NIGHT = NightShare(may_run=True, held_groups=0, words="it is night")


def run(
    directory: Path, use: Callable[[BatchServer], Coroutine[Any, Any, None]], **given: Any
) -> None:
    """Serve, use, and see that nothing is left under way."""

    async def live() -> None:
        async with batch_server(directory, **given) as server:
            await use(server)
            server.http.core.free.set()
        await server.http.is_empty()

    asyncio.run(asyncio.wait_for(live(), 60.0))


def test_a_batch_is_answered_in_a_file_of_lines(tmp_path: Path) -> None:
    async def use(server: BatchServer) -> None:
        lines = [chat(f"request-{number}") for number in range(20)]
        lines.append(chat("too long", max_tokens=-1))
        batch = await server.ended(await server.create(lines))
        assert batch.status == "completed"
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
        assert batch.expires_at - batch.created_at == 86_400
        output = await server.lines(batch.output_file_id)
        assert {*output} == {f"request-{number}" for number in range(20)}
        first = output["request-0"]
        assert (first["error"], first["response"]["status_code"]) == (None, 200)
        assert first["response"]["body"]["usage"]["completion_tokens"] == 3
        failed = (await server.lines(batch.error_file_id))["too long"]
        assert failed["response"]["status_code"] == 400
        assert "max_tokens" in failed["response"]["body"]["error"]["message"]
        listed = [file.purpose async for file in server.client.files.list()]
        assert listed == ["batch_output", "batch_output", "batch"]

    run(tmp_path, use)
