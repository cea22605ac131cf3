"""The hook in a real app: vLLM's own, and one that fails."""

import asyncio
import contextlib
import inspect
import os
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from vllm import envs
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

from emulator.errors import ConfigError
from loadgen.measures.slo import Slo
from serving.access.control_key import control_key_path
from serving.access.key_ring import KeyRing
from serving.access.secret import hash_of
from serving.errors import PortInUse
from serving.plugin.engine_shutdown import HEED_SIGNALS, LEAVE_SIGNALS
from serving.server.control.control_address import ENVIRONMENT, MIDDLEWARE, ControlAddress
from serving.server.control.control_client import ServerUnreachable
from serving.server.control.control_hook import ControlHook
from serving.server.engine_call import Engine
from serving.server.gateway.gateway_settings import ENVIRONMENT as FRONT_DOOR
from serving.server.gateway.gateway_settings import GatewaySettings
from serving.wire import control_call
from serving.wire.day_night_state import DayNightState
from serving.wire.machine_state import MachineState
from tests.e2e.server_process import free_port
from tests.serving.own_metrics import own_metrics
from tests.serving.plugin.engine_config import engine_config
from tests.serving.plugin.stat_loggers import started
from tests.serving.server.control.small_engine import SmallEngine, connected, control_server
from tests.serving.server.day_night.lending_engine import LendingEngine, a_settings
from tests.serving.wire.engine_statuses import status


@pytest.fixture(autouse=True)
def other_environments() -> Iterator[None]:
    """The hook has vLLM read its environment once; the next test may have another."""
    yield
    envs.disable_envs_cache()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> ControlAddress:
    chosen = ControlAddress(port=free_port())
    monkeypatch.setenv(ENVIRONMENT, str(chosen))
    return chosen


@pytest.fixture(autouse=True)
def metrics_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one admission; this one has many."""
    monkeypatch.setattr("serving.telemetry.gateway_metrics.REGISTRY", CollectorRegistry())


def with_gateway(engine: Any) -> Any:
    """Give an engine what the gateway needs of AsyncLLM beside what the control service does."""

    async def collective_rpc(method: str, *args: Any, **kwargs: Any) -> list[Any]:
        if method in (LEAVE_SIGNALS, HEED_SIGNALS):
            return [None]
        return await answered(method, *args, **kwargs)

    answered, engine.collective_rpc = engine.collective_rpc, collective_rpc
    engine.vllm_config = engine_config()
    engine.model_config = engine.vllm_config.model_config
    engine.output_processor = OutputProcessor(None, log_stats=False)
    engine.check_admission = lambda *_: None
    engine.ended = []
    engine.shutdown = lambda timeout=None: engine.ended.append(timeout)
    return engine


def give_state(app: FastAPI, engine: Any) -> FastAPI:
    """What vLLM sets on its app before it serves it."""
    app.state.engine_client = with_gateway(engine)
    app.state.log_stats = False
    app.state.args = SimpleNamespace(middleware=[], sse_keep_alive_interval=0)
    app.state.openai_serving_completion = app.state.openai_serving_chat = None
    config = SimpleNamespace(timeout_keep_alive=5, ssl=None)
    app.state.server = SimpleNamespace(should_exit=False, config=config)
    return app


def an_app(engine: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ControlHook)
    return give_state(app, engine)


@pytest.fixture(scope="module")
def vllm_arguments() -> Namespace:
    parser = make_arg_parser(FlexibleArgumentParser())
    return parser.parse_args(["--middleware", MIDDLEWARE])


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[list[str]]:
    """Run an app's life as uvicorn does; gives the messages that the app has sent."""
    sent: list[str] = []
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    started = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message["type"])
        started.set()

    inbox.put_nowait({"type": "lifespan.startup"})
    life = asyncio.ensure_future(app({"type": "lifespan", "state": {}}, inbox.get, send))
    await asyncio.wait({life, asyncio.ensure_future(started.wait())}, return_when="FIRST_COMPLETED")
    try:
        yield sent
    finally:
        inbox.put_nowait({"type": "lifespan.shutdown"})
        await life


def state_at(address: ControlAddress) -> MachineState:
    with connected(address, timeout_s=5.0) as client:
        return client.call(control_call.GET_STATE)


async def state_while_up(app: FastAPI, address: ControlAddress) -> tuple[MachineState, list[str]]:
    async with lifespan(app) as sent:
        state = await asyncio.to_thread(state_at, address)
    return state, sent


@pytest.mark.long
def test_day_and_night_live_as_long_as_the_app(
    address: ControlAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = a_settings(tmp_path, policy="manual")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    lender = LendingEngine()
    asked = 0

    def look(when: str, request: object) -> None:
        nonlocal asked
        asked += when == "after"

    async def up() -> int:
        async with lifespan(an_app(lender)):
            lender.fails = look
            while asked < 2:
                await asyncio.sleep(0.01)  # the controller looks by itself
            state = await asyncio.to_thread(day_night_at, address)
            assert [group.phase for group in state.groups] == ["serving"] * 4
        return asked

    seen = asyncio.run(asyncio.wait_for(up(), 20))
    assert seen == asked  # and nobody looks any more


@pytest.mark.long
def test_day_and_night_see_the_engine_s_own_times_per_token(
    address: ControlAddress, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = a_settings(tmp_path, policy="manual", slo=Slo.parse("tpot=30ms"))
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    lender: Any = LendingEngine()

    async def up() -> DayNightState:
        stats, clock = started()
        clock.write(status(emulated_s=9.0))
        lender.logger_manager = SimpleNamespace(stat_loggers=[stats])
        ended = IterationStats()
        ended.finished_requests = [a_finished(tpot_s) for tpot_s in [0.02] * 90 + [0.04] * 10]
        async with lifespan(an_app(lender)):
            stats.record(None, ended)
            return await asyncio.to_thread(day_night_at, address)

    with own_metrics():
        assert asyncio.run(asyncio.wait_for(up(), 20)).tpot_attainment == 0.9


def a_finished(tpot_s: float) -> FinishedRequestStats:
    return FinishedRequestStats(
        finish_reason=FinishReason.LENGTH,
        num_generation_tokens=11,
        decode_time=10 * tpot_s,
        mean_time_per_output_token=tpot_s,
    )


def day_night_at(address: ControlAddress) -> DayNightState:
    with connected(address, timeout_s=5.0) as client:
        return client.call(control_call.GET_DAY_NIGHT)


@pytest.mark.long
def test_the_service_lives_as_long_as_vllm_s_app(
    address: ControlAddress, engine: SmallEngine, vllm_arguments: Namespace
) -> None:
    app = give_state(build_app(vllm_arguments, ("generate",)), engine)
    state, sent = asyncio.run(state_while_up(app, address))

    assert state == engine.state
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(ServerUnreachable, match="nobody answers"):
        state_at(address)


def test_vllm_s_engine_client_is_an_engine_as_the_service_needs_it() -> None:
    needed, real = (
        {name: one.default for name, one in inspect.signature(kind).parameters.items()}
        for kind in (Engine.collective_rpc, AsyncLLM.collective_rpc)
    )

    assert real == needed
    assert isinstance(AsyncLLM.errored, property)


def test_requests_go_by_the_admission_once_the_app_is_up(
    address: ControlAddress, engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GatewaySettings(key_hashes=(hash_of("a" * 40),))
    monkeypatch.setenv(FRONT_DOOR, settings.to_environment()[FRONT_DOOR])
    app = an_app(engine)
    app.get("/v1/models")(lambda: "reached")

    async def live() -> list[int]:
        async with lifespan(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                answers = [
                    await client.get(path, headers=headers)
                    for path, headers in (
                        ("/livez", {}),
                        ("/v1/models", {}),
                        ("/v1/models", {"authorization": f"Bearer {'a' * 40}"}),
                    )
                ]
        return [answer.status_code for answer in answers]

    assert asyncio.run(live()) == [200, 401, 200]
    assert engine.ended == [8.0]  # type: ignore[attr-defined]  # the engine, with the app


def test_a_key_file_that_is_wrong_fails_the_app_s_start(
    address: ControlAddress, engine: SmallEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = GatewaySettings(key_file=tmp_path / "missing")
    monkeypatch.setenv(FRONT_DOOR, settings.to_environment()[FRONT_DOOR])

    assert asyncio.run(fail_to_start(an_app(engine))) == ["lifespan.startup.failed"]


def test_the_control_service_s_key_is_there_as_long_as_the_app(
    address: ControlAddress, engine: SmallEngine
) -> None:
    async def live() -> bool:
        async with lifespan(an_app(engine)):
            return control_key_path(address.port, os.environ).exists()

    assert asyncio.run(live())
    assert not control_key_path(address.port, os.environ).exists()


def test_a_key_is_named_by_its_holder_and_the_run_s_own_as_that() -> None:
    ring = KeyRing(key_hashes=(hash_of("a" * 40),), control_secret="c" * 40)

    assert ring.name_of("c" * 40) == "the run's key"
    assert ring.name_of("a" * 40) == "the key (key 1)"


class Recorded:
    """In place of the server: what the hook does with it."""

    done: ClassVar[list[str]]

    def __init__(self, _: object, address: ControlAddress, *__: object, **___: object) -> None:
        self.done.append(f"made for {address}")

    async def start(self) -> None:
        self.done.append("started")

    async def stop(self) -> None:
        self.done.append("stopped")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(Recorded, "done", [], raising=False)
    monkeypatch.setattr("serving.server.control.control_hook.ControlServer", Recorded)
    return Recorded.done


def test_without_the_variable_the_address_is_the_default(
    recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)

    async def live() -> None:
        async with lifespan(an_app(SmallEngine())):
            assert recorded == ["made for 127.0.0.1:50051", "started"]

    asyncio.run(live())
    assert recorded[2:] == ["stopped", "stopped"]  # before the app ends, and whatever happens


def test_an_app_that_ends_without_a_word_takes_the_service_with_it(
    recorded: list[str], engine: SmallEngine, address: ControlAddress
) -> None:
    async def live() -> None:
        started = asyncio.Event()

        async def send(_: Any) -> None:
            started.set()

        inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        inbox.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "state": {}}
        life = asyncio.ensure_future(an_app(engine)(scope, inbox.get, send))
        await started.wait()
        life.cancel()
        await asyncio.wait({life})

    asyncio.run(live())
    assert recorded == [f"made for {address}", "started", "stopped"]


def test_a_service_that_fails_to_stop_keeps_none_of_the_others_from_it(
    recorded: list[str],
    engine: SmallEngine,
    address: ControlAddress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(self: Recorded) -> None:
        self.done.append("failed")
        raise OSError("no")

    monkeypatch.setattr(Recorded, "stop", fail)

    async def live() -> None:
        async with lifespan(an_app(engine)):
            pass

    with pytest.raises(OSError, match="no"):
        asyncio.run(live())
    assert recorded[2:] == ["failed"] * 2  # at the shutdown, and when the app has ended
    assert engine.ended == [8.0]  # type: ignore[attr-defined]
    assert not control_key_path(address.port, os.environ).exists()


async def fail_to_start(app: FastAPI) -> list[str]:
    sent: list[str] = []
    with contextlib.suppress(PortInUse, ConfigError):
        async with lifespan(app) as sent:
            pass
    return sent


@pytest.mark.parametrize("text", ["0.0.0.0:50051", "here"])
def test_an_address_that_cannot_be_fails_the_app_s_start(
    text: str, engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, text)

    assert asyncio.run(fail_to_start(an_app(engine))) == ["lifespan.startup.failed"]


def test_a_port_that_is_taken_fails_the_app_s_start(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_server(engine) as taken:
        monkeypatch.setenv(ENVIRONMENT, str(taken))
        assert asyncio.run(fail_to_start(an_app(engine))) == ["lifespan.startup.failed"]
