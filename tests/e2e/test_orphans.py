"""Any one process of a server is killed, and what is left of it is nothing, or goes on.

The training job and what it starts are in `test_day_night`.
"""

import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from serving.wire import control_call
from serving.wire.machine_state import ChipHealth
from tests.e2e.server_answers import control
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = "qwen3-30b-a3b"
TRAY = (
    *("--model", MODEL, "--chips", "4", "--clock", "dilated:10"),
    *("--max-num-batched-tokens", "512", "--max-model-len", "4096"),
)
SOON_WALL_S = 30.0
"""In which a server ends that cannot go on; most of it is the load of a busy host."""

ENDING = {
    "EngineCore": 1,
    "gcs_server": 1,
    "raylet/raylet": 1,
    # Ray's node daemon ends when one of its agents does.
    "ray::DashboardAgent": 1,
    "ray::RuntimeEnvAgent": 1,
}
"""What a server cannot do without, and its exit code then. Names are regular expressions."""

SPARED = (
    "fork_server.py",
    "log_monitor.py",
    "_private/monitor.py",
    "dashboard/dashboard.py",
    "resource_tracker",
    "scratch_directory.py .*/ultraserve-ray-",
    "scratch_directory.py .*/ultraserve-(?!ray-)",
)
"""What it can; a scratch directory whose watcher is gone is removed by its owner."""

CHIP = "ray::ChipWorker"


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with started(ULTRASERVE, *TRAY) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=4) as pool:
        yield pool


def completion(server: ServerProcess, tokens: int) -> int:
    """The status of a completion."""
    request = {"model": MODEL, "prompt": [9], "max_tokens": tokens, "ignore_eos": True}
    return httpx.post(f"{server.url}/v1/completions", json=request, timeout=120).status_code


def begun(server: ServerProcess, aside: ThreadPoolExecutor, tokens: int) -> Future[int]:
    """A completion that runs."""
    answer = aside.submit(completion, server, tokens)
    with control(server) as service:
        end_s = time.monotonic() + SOON_WALL_S
        while not any(rank.requests_running for rank in service.call(control_call.GET_STATE).ranks):
            assert time.monotonic() < end_s, server.log()
    return answer


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_nothing_and_no_process_of_it_is_forgotten_here(
    server: ServerProcess, aside: ThreadPoolExecutor
) -> None:
    server.look()
    others = [shown for (pid, _), shown in server.running().items() if pid != server.pid]
    known = [*ENDING, *SPARED, CHIP]
    assert [shown for shown in others if not any(re.search(each, shown) for each in known)] == []
    assert [each for each in known if not any(re.search(each, shown) for shown in others)] == []
    answer = begun(server, aside, 3_000)

    server.kill(server.pid)

    assert server.wait_end() == -signal.SIGKILL
    assert isinstance(answer.exception(), httpx.TransportError)
    assert server.left_over() == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ENDING)
def test_a_server_that_cannot_go_on_tells_its_clients_and_ends(
    victim: str, server: ServerProcess, aside: ThreadPoolExecutor
) -> None:
    answer = begun(server, aside, 3_000)

    killed_s = time.monotonic()
    server.kill(server.pid_of(victim))

    assert answer.result(SOON_WALL_S) == 503
    assert server.wait_end() == ENDING[victim]
    assert time.monotonic() - killed_s < SOON_WALL_S
    assert server.left_over() == [], server.log()


@pytest.mark.slow
@pytest.mark.parametrize("victim", SPARED)
def test_what_a_server_can_do_without_is_not_missed(
    victim: str, server: ServerProcess, aside: ThreadPoolExecutor
) -> None:
    answer = begun(server, aside, 100)

    server.kill(server.pid_of(victim))

    assert answer.result(SOON_WALL_S) == 200
    assert completion(server, 4) == 200
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 0
    assert server.left_over() == [], server.log()


@pytest.mark.slow
def test_a_chip_that_is_killed_is_lost_and_its_requests_go_on(
    server: ServerProcess, aside: ThreadPoolExecutor
) -> None:
    answer = begun(server, aside, 100)

    server.kill(server.pid_of(CHIP))

    assert answer.result(SOON_WALL_S) == 200
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    with control(server) as service:
        states = {chip.health for chip in service.call(control_call.GET_STATE).chips}
    assert states == {ChipHealth.LOST, ChipHealth.UP}
    server.signal(signal.SIGTERM)
    assert server.wait_end() == 0
    assert server.left_over() == [], server.log()
