"""`serve --api-server-count`: several API processes are one server to its clients and operators."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import httpx
import psutil
import pytest

from serving.access.secret import draw_secret, hash_of
from serving.wire import control_call
from tests.e2e.server_answers import control, metrics
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "qwen3-30b-a3b"
PROCESSES = 2
CONCURRENT = 8
SECRET = draw_secret()
KEYS = f"""
[[key]]
name = "alice"
hash = "{hash_of(SECRET)}"
concurrent = {CONCURRENT}
"""
LONG = 400
SOON_WALL_S = 30.0
"""On a busy host."""


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    with started(
        ULTRASERVE,
        *("--model", MODEL, "--weights", "none", "--chips", "4"),
        *("--clock", "dilated:10", "--max-model-len", "2048", "--engine", "fast"),
        *("--api-keys", str(keys), "--api-server-count", str(PROCESSES)),
        *("--drain-timeout", "200"),
    ) as process:
        process.wait_ready()
        process.wait_until(
            # Its socket listens before it does: it is the first one's.
            lambda: process.log().count("Application startup complete") == PROCESSES,
            "all API processes",
        )
        assert len(serving(process)) == PROCESSES
        yield process


def serving(server: ServerProcess) -> list[psutil.Process]:
    """The processes that have the listening socket."""
    first = psutil.Process(server.pid)
    return [
        each
        for each in (first, *first.children())
        if any(
            one.status == psutil.CONN_LISTEN and one.laddr.port == server.port
            for one in each.net_connections("tcp")
        )
    ]


def connections(server: ServerProcess, process: psutil.Process) -> int:
    """Of clients."""
    return sum(
        one.status == psutil.CONN_ESTABLISHED and one.laddr.port == server.port
        for one in process.net_connections("tcp")
    )


async def stream(http: httpx.AsyncClient, tokens: int) -> tuple[int, int, bool]:
    """Status and tokens of one stream, over a connection of its own, and whether it is whole."""
    body = {"model": MODEL, "prompt": [9] * 20, "max_tokens": tokens}
    asked = body | {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    text = ""
    async with http.stream("POST", "/v1/completions", json=asked) as answer:
        try:
            async for part in answer.aiter_text():
                text += part
        except httpx.HTTPError:
            return answer.status_code, 0, False
    if answer.status_code != 200:
        return answer.status_code, 0, False
    *_, last, done = text.split("\n\n")[:-1]
    used = json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"]
    return answer.status_code, used, done == "data: [DONE]"


async def refused(http: httpx.AsyncClient) -> None:
    """Wait until the server takes nothing new. A process that is killed meanwhile has no answer."""
    async with asyncio.timeout(SOON_WALL_S):
        while True:
            with suppress(httpx.RemoteProtocolError):
                if (await stream(http, 1))[0] == HTTPStatus.SERVICE_UNAVAILABLE:
                    return
            await asyncio.sleep(0.1)


class Streams:
    """Streams that are under way."""

    def __init__(self, server: ServerProcess, count: int, tokens: int = LONG) -> None:
        self.server, self.count, self.tokens = server, count, tokens

    async def __aenter__(self) -> "Streams":
        self.http = httpx.AsyncClient(
            base_url=self.server.url,
            headers={"authorization": f"Bearer {SECRET}"},
            timeout=120,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self.going = []
        for taken in range(1, self.count + 1):  # so that each goes where fewest are
            self.going.append(asyncio.ensure_future(stream(self.http, self.tokens)))
            async with asyncio.timeout(SOON_WALL_S):
                while sum(connections(self.server, each) for each in serving(self.server)) < taken:
                    await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*self.going, return_exceptions=True)
        await self.http.aclose()

    async def ended(self) -> list[tuple[int, int, bool]]:
        return await asyncio.gather(*self.going)


def test_limits_metrics_control_and_the_end_are_one_servers(server: ServerProcess) -> None:
    before = metrics(server, SECRET)

    async def use() -> None:
        async with Streams(server, CONCURRENT) as streams:
            shares = [connections(server, each) for each in serving(server)]
            assert min(shares) >= 1, "both have some"
            more = await asyncio.gather(*(stream(streams.http, 1) for _ in range(CONCURRENT)))
            assert {status for status, _, _ in more} == {429}
            with control(server) as service:
                assert service.call(control_call.GET_ADMISSION).in_flight == CONCURRENT
            assert set(await streams.ended()) == {(200, LONG, True)}

    asyncio.run(use())
    after = [metrics(server, SECRET) for _ in range(4)]
    for page in after:
        assert page["vllm:generation_tokens_total"] == CONCURRENT * LONG
        assert page["vllm:request_success_total"] == CONCURRENT
        assert page["ultraserve_admission_wait_seconds_count"] == CONCURRENT
        assert page["ultraserve_admission_in_flight"] == 0
        assert page["ultraserve_admission_refused_total"] == CONCURRENT
    assert before["vllm:generation_tokens_total"] == 0

    async def end() -> None:
        async with Streams(server, CONCURRENT) as streams:
            server.signal(signal.SIGTERM, group=True)
            await refused(streams.http)
            assert {each[1:] for each in await streams.ended()} == {(LONG, True)}

    asyncio.run(end())
    assert server.wait_end() == 0
    assert server.left_over() == []


def test_a_server_that_lost_an_api_process_ends_the_others_streams_and_says_so(
    server: ServerProcess,
) -> None:
    async def use() -> None:
        async with Streams(server, CONCURRENT) as streams:
            server.kill(server.pid_of("APIServer_1"))
            await refused(streams.http)
            whole = [each for _, _, each in await streams.ended()]
        assert 0 < sum(whole) < CONCURRENT

    asyncio.run(use())
    assert server.wait_end() == 1
    assert "API process ApiServer_1 is gone, and the server ends" in server.log()
    assert server.left_over() == []


@pytest.mark.parametrize("victim", ["first", "EngineCore"])
def test_nothing_is_left_of_a_server_that_cannot_go_on(server: ServerProcess, victim: str) -> None:
    server.look()
    server.kill(server.pid if victim == "first" else server.pid_of(victim))
    assert server.wait_end() == (-signal.SIGKILL if victim == "first" else 1)
    assert server.left_over() == []
