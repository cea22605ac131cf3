"""The asynchronous client with fifty requests in flight, and clients that leave."""

import asyncio
import os
import time

import httpx2
import pytest
from conftest import MODEL
from openai import APITimeoutError, AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

AT_ONCE = 50
CONTEXT_TOKENS = int(os.environ["CONTEXT_TOKENS"])


def server_total(name: str) -> float:
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    page = httpx2.get(f"{os.environ['ULTRASERVE_URL']}/metrics", headers=headers).text
    families = text_string_to_metric_families(page)
    found = [each.value for family in families for each in family.samples if each.name == name]
    assert found, f"the server has no {name}"
    return sum(found)


def wait_until_idle() -> None:
    end_s = time.monotonic() + 30
    while server_total("vllm:num_requests_running") and time.monotonic() < end_s:
        time.sleep(0.2)  # polls the server
    assert server_total("vllm:num_requests_running") == 0
    assert server_total("vllm:kv_cache_usage_perc") == 0


def test_fifty_streams_at_once_each_get_the_text_they_would_get_alone() -> None:
    async def text(client: AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model=MODEL,
            prompt=f"{number % 5} " * 10,
            max_tokens=16,
            temperature=0.0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return "".join([piece.choices[0].text async for piece in stream if piece.choices])

    async def run() -> tuple[list[str], list[str]]:
        async with AsyncOpenAI(max_retries=0, timeout=240) as client:
            alone = [await text(client, number) for number in range(5)]
            together = await asyncio.gather(*(text(client, n) for n in range(AT_ONCE)))
        return alone, together

    alone, together = asyncio.run(run())
    assert together == [alone[number % 5] for number in range(AT_ONCE)]


def test_clients_that_leave_free_their_requests(client: OpenAI) -> None:
    async def leave_some() -> None:
        async with AsyncOpenAI(max_retries=0, timeout=120) as many:
            streams = [
                await many.completions.create(
                    model=MODEL,
                    prompt=f"{number} " * 8,
                    max_tokens=CONTEXT_TOKENS - 100,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                for number in range(8)
            ]
            for stream in streams:
                await anext(aiter(stream))
            assert server_total("vllm:num_requests_running") >= 8
            for stream in streams:
                await stream.close()

    asyncio.run(leave_some())
    wait_until_idle()


def test_a_client_whose_patience_ends_is_not_served_on(client: OpenAI) -> None:
    with pytest.raises(APITimeoutError):
        client.with_options(timeout=1.0).completions.create(
            model=MODEL,
            prompt="7" * 16,
            max_tokens=CONTEXT_TOKENS - 100,
            extra_body={"ignore_eos": True},
        )

    wait_until_idle()
