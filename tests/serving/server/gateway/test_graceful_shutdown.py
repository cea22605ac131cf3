"""How a server ends, with a real AsyncLLM, gateway, HTTP server and real signals to this process.

What is made up is the engine's core, which says what it was asked, and the process, which stays.
"""

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from vllm import SamplingParams
from vllm.entrypoints.launchers.launcher import NoSignalServer

from serving.plugin.native_front import NativeFront
from serving.policy.admission.admission_limits import AdmissionLimits
from serving.policy.admission.capacity import Capacity
from serving.policy.admission.refusal import Refused
from serving.policy.admission.work import Client, Work, WorkClass
from serving.process.server_shutdown import HUNG_CODE, ServerShutdown, server_shutdown
from serving.server.gateway import graceful_shutdown
from serving.server.gateway.admission_controller import AdmissionController
from serving.server.gateway.graceful_shutdown import GracefulShutdown
from serving.telemetry import recorder
from tests.serving.process.test_front_program import program
from tests.serving.server.gateway.small_async_llm import SmallCore, small_async_llm

pytestmark = pytest.mark.long

WAIT_S = 20.0
STEP_S = 0.01
LONG_TOKENS = 400  # about four seconds
CAPACITY = Capacity(seats=6, kv_tokens=4096, prefill_tokens_per_step=512, dilation=1.0)


class Process:
    """What would have ended."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.end = ServerShutdown(self.left.append)


class SmallServer:
    """One server: HTTP before the gateway before the engine; a path is a number of tokens."""

    def __init__(self, engine: Any, core: SmallCore, drain_wall_s_max: float) -> None:
        self.engine, self.core = engine, core
        self.asked: list[str] = []
        core.collective_rpc_async = self._asked  # type: ignore[attr-defined]
        self.admission = AdmissionController(AdmissionLimits(), lambda: CAPACITY)
        self.http = NoSignalServer(
            uvicorn.Config(self._app, interface="asgi3", lifespan="off", log_config=None)
        )
        self.graceful = GracefulShutdown(
            engine, self.http, self.admission, drain_wall_s_max=drain_wall_s_max
        )
        self._requests = 0

    async def _asked(self, method: str, *_: Any) -> list[Any]:
        self.asked.append(method)
        return [None]

    async def _app(self, scope: Any, _receive: Any, send: Any) -> None:
        tokens = int(scope["path"].lstrip("/"))
        work = Work(
            client=Client(),
            work_class=WorkClass.INTERACTIVE,
            sequences=1,
            prompt_tokens=3,
            new_tokens_max=tokens,
        )
        try:
            with self.admission.enter(work):
                await self._answer(tokens, send)
        except Refused as refused:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": str(refused).encode()})

    async def _answer(self, tokens: int, send: Any) -> None:
        self._requests += 1
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        prompt = {"prompt_token_ids": [1, 2, 3]}
        async for output in self.engine.generate(prompt, params, f"r{self._requests}"):
            (made,) = output.outputs
            line = f"{len(made.token_ids)} {made.finish_reason}\n".encode()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def serve(self, listener: socket.socket) -> None:
        """As vLLM's server has it: the services end with the HTTP server, then the engine does."""
        await self.graceful.start()
        await self.http.serve(sockets=[listener])
        await self.graceful.stop()


@asynccontextmanager
async def running(
    drain_wall_s_max: float = WAIT_S,
) -> AsyncIterator[tuple[SmallServer, "asyncio.Task[None]", httpx.AsyncClient]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            small_async_llm(step_s=STEP_S) as (engine, core),
            httpx.AsyncClient(base_url=url, timeout=WAIT_S) as client,
        ):
            server = SmallServer(engine, core, drain_wall_s_max)
            serving = asyncio.create_task(server.serve(listener))
            try:
                yield server, serving, client
            finally:
                loop = asyncio.get_running_loop()
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)
                serving.cancel()


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, tokens: int) -> AsyncIterator[AsyncIterator[str]]:
    """A stream that has begun."""
    async with client.stream("GET", f"/{tokens}") as response:
        lines = response.aiter_lines()
        await anext(lines)
        yield lines


async def last_of(lines: AsyncIterator[str]) -> str:
    last = ""
    async for line in lines:
        last = line
    return last


@pytest.fixture(autouse=True)
def _own_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "REGISTRY", CollectorRegistry())


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    token = server_shutdown.set(process.end)
    yield process
    process.end.ended()
    server_shutdown.reset(token)


def told(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_sigterm_lets_requests_end_and_nobody_new_in(process: Process) -> None:
    async def case() -> None:
        async with running() as (server, serving, client), streaming(client, 100) as lines:
            told(signal.SIGTERM)
            refused = await client.get("/1")
            assert (refused.status_code, refused.text) == (503, "the server is ending")
            assert server.admission.closed is not None
            assert not serving.done()

            assert await last_of(lines) == "100 length"
            await asyncio.wait_for(serving, WAIT_S)
            assert server.asked == ["leave_signals", "heed_signals"]
            assert server.core.aborted == []

    asyncio.run(case())
    assert (process.end.code, process.left) == (0, [])


def test_requests_that_outlast_their_time_are_aborted_and_told(process: Process) -> None:
    async def case() -> float:
        async with running(0.2) as (server, serving, client):
            async with streaming(client, LONG_TOKENS) as lines:
                begun_s = time.monotonic()
                told(signal.SIGTERM)
                assert (await last_of(lines)).endswith(" abort")
            await asyncio.wait_for(serving, WAIT_S)
            assert len(server.core.aborted) == 1
            return time.monotonic() - begun_s

    assert 0.2 <= asyncio.run(case()) < 2.0
    assert (process.end.code, process.left) == (0, [])


@pytest.mark.process
def test_a_front_that_outlasts_its_time_is_cut_and_the_log_says_so(
    process: Process,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case() -> None:
        async with running(0.3) as (_, serving, client):
            await client.get("/1")  # it hears signals, and vLLM has configured its loggers
            monkeypatch.setattr(graceful_shutdown.logger, "handlers", [caplog.handler])
            told(signal.SIGTERM)
            await asyncio.wait_for(serving, WAIT_S)

    words = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as stays:
        assert stays.stdout is not None
        stays.stdout.readline()
        front = NativeFront(program(tmp_path), stays)
        monkeypatch.setattr(graceful_shutdown, "native_front", lambda: front)

        asyncio.run(case())

        assert front.has_ended
    assert "the front has not ended, and is cut with its requests" in caplog.text


def test_sigint_gives_requests_no_time(process: Process) -> None:
    async def case() -> None:
        async with running() as (_, serving, client), streaming(client, LONG_TOKENS) as lines:
            told(signal.SIGINT)
            assert (await last_of(lines)).endswith(" abort")
            await asyncio.wait_for(serving, WAIT_S)

    begun_s = time.monotonic()
    asyncio.run(case())
    assert time.monotonic() - begun_s < LONG_TOKENS * STEP_S
    assert (process.end.code, process.left) == (0, [])


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_waits_for_nobody(second: signal.Signals, process: Process) -> None:
    async def case() -> None:
        async with running() as (_, serving, client), streaming(client, LONG_TOKENS) as lines:
            told(signal.SIGTERM)
            await asyncio.sleep(0.1)
            assert not serving.done()
            told(second)
            await asyncio.wait_for(serving, 2.0)
            with pytest.raises(httpx.HTTPError):
                await last_of(lines)

    asyncio.run(case())
    assert (process.end.code, process.left) == (128 + second, [])


def test_an_engine_that_is_gone_fails_its_requests_and_ends_the_server(process: Process) -> None:
    async def case() -> float:
        async with running() as (server, serving, client):
            async with streaming(client, LONG_TOKENS) as lines:
                begun_s = time.monotonic()
                # As when its process is killed: vLLM knows, and who waits is not told.
                server.core.resources.engine_dead = True
                server.core.free.clear()
                with pytest.raises(httpx.HTTPError):
                    await last_of(lines)
            await asyncio.wait_for(serving, WAIT_S)
            assert server.asked == ["leave_signals"]
            return time.monotonic() - begun_s

    assert asyncio.run(case()) < 2.0
    assert (process.end.code, process.left) == (1, [])


def test_a_server_that_vllm_ends_for_its_engine_says_that_nobody_asked_for_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graceful_shutdown, "_LOOK_WALL_S", WAIT_S)

    async def case() -> None:
        async with running() as (server, serving, client):
            assert (await client.get("/1")).status_code == 200
            server.core.resources.engine_dead = True
            server.http.should_exit = True  # as vLLM's handler of a request's EngineDeadError does
            await asyncio.wait_for(serving, WAIT_S)

    asyncio.run(case())
    assert (process.end.code, process.left) == (1, [])


def test_an_engine_that_goes_while_requests_end_is_not_waited_for(process: Process) -> None:
    async def case() -> None:
        async with running() as (server, serving, client):
            async with streaming(client, LONG_TOKENS) as lines:
                told(signal.SIGTERM)
                await asyncio.sleep(0.1)
                server.core.resources.engine_dead = True
                server.core.free.clear()
                with pytest.raises(httpx.HTTPError):
                    await last_of(lines)
            await asyncio.wait_for(serving, WAIT_S)

    begun_s = time.monotonic()
    asyncio.run(case())
    assert time.monotonic() - begun_s < LONG_TOKENS * STEP_S
    assert process.left == []


@pytest.mark.parametrize("what", ["abort", "shutdown"])
def test_an_end_that_hangs_is_bounded(
    what: str, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graceful_shutdown, "_BOUND_WALL_S", 0.5)
    monkeypatch.setattr(
        graceful_shutdown, "_SECOND_WALL_S", -graceful_shutdown._ENGINE_WALL_S + 0.5
    )

    async def case() -> None:
        free = asyncio.Event()

        async def never(*_: Any, **__: Any) -> None:
            await free.wait()

        async with running(0.1) as (server, serving, client), streaming(client, LONG_TOKENS):
            if what == "abort":
                monkeypatch.setattr(server.engine, "abort", never)
            else:
                monkeypatch.setattr(server.core, "collective_rpc_async", never)
            told(signal.SIGTERM)
            await until(lambda: bool(process.left))
            free.set()
            await asyncio.wait({serving}, timeout=WAIT_S)

    asyncio.run(case())
    assert process.left == [HUNG_CODE]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_two_signals_end_a_process_whose_loop_is_stuck(
    run: Callable[..., None], process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graceful_shutdown, "_SECOND_WALL_S", 0.1)
    left_while_stuck: list[int] = []

    async def case() -> None:
        async with running() as (server, serving, client), streaming(client, LONG_TOKENS):
            for _ in range(2):
                signaller = threading.Timer(0.05, told, (signal.SIGTERM,))
                signaller.start()
                time.sleep(0.2)  # the loop's thread is kept
                signaller.join()
            end_s = time.monotonic() + WAIT_S
            while not process.left and time.monotonic() < end_s:
                time.sleep(0.01)
            left_while_stuck.extend(process.left)
            assert server.admission.closed is None  # nothing of the loop's has run yet
            await asyncio.wait({serving}, timeout=WAIT_S)

    run(case())
    assert left_while_stuck == [128 + signal.SIGTERM]


def test_one_signal_bounds_the_end_of_a_stuck_loop_by_the_requests_time(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graceful_shutdown, "_BOUND_WALL_S", 0.1)
    left_while_stuck: list[int] = []

    async def case() -> None:
        async with running(0.3) as (_, serving, client), streaming(client, LONG_TOKENS):
            told(signal.SIGTERM)
            time.sleep(0.25)  # within the requests' time
            assert process.left == []
            end_s = time.monotonic() + WAIT_S
            while not process.left and time.monotonic() < end_s:
                time.sleep(0.01)
            left_while_stuck.extend(process.left)
            await asyncio.wait({serving}, timeout=WAIT_S)

    asyncio.run(case())
    assert left_while_stuck == [HUNG_CODE]


async def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)  # polls a thread
