"""A chip of a served engine hangs: everybody is told for how long, and every call is answered."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.access.control_key import find_control_key
from serving.server.control.control_address import ControlAddress
from serving.server.control.control_client import ControlClient, RefusedByServer
from serving.wire import control_call
from serving.wire.machine_state import FaultStage
from tests.e2e.server_answers import ask, metrics
from tests.e2e.server_process import ServerProcess
from tests.live_server import DILATION

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ANSWER_WALL_S = 2.0
HANG_EMULATED_S = 30.0


@pytest.fixture
def control(live_server: ServerProcess) -> Iterator[ControlClient]:
    key = find_control_key(live_server.control_port, live_server.own_environment)
    with ControlClient(ControlAddress(port=live_server.control_port), 10.0, key=key) as client:
        yield client


def in_time(call: Callable[[], Any]) -> Any:
    began_s = time.monotonic()
    answer = call()
    assert time.monotonic() - began_s < ANSWER_WALL_S
    return answer


def drain_and_resume(control: ControlClient) -> None:
    """Both are answered; a drain that lends may be refused, for want of HBM to train in."""
    with contextlib.suppress(RefusedByServer):
        lease = control.call(
            control_call.DRAIN, chips=[3], grace_s=100.0, purpose="maintenance"
        ).lease
        assert lease is not None
        control.call(control_call.RESUME, lease=lease.number)


def readiness(live_server: ServerProcess) -> httpx.Response:
    return httpx.get(f"{live_server.url}/readyz", timeout=5.0)


def test_while_a_chip_hangs_calls_are_answered_and_healing_it_ends_the_stall(
    complete: Callable[..., Any], live_server: ServerProcess, control: ControlClient
) -> None:
    def text(number: int) -> Any:
        asked = {"max_tokens": 100, "extra_body": {"return_token_ids": True}}
        return complete([29 + number] * 30, **asked).choices[0].token_ids

    foreseen = control.call(
        control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.HANG_CHIP, chip=2), dry_run=True
    )
    assert foreseen.stall_s >= HANG_EMULATED_S
    assert foreseen.stall_wall_s >= HANG_EMULATED_S * DILATION
    with ThreadPoolExecutor(4) as pool:
        expected = list(pool.map(text, range(4)))
        running = [pool.submit(text, number) for number in range(4)]
        while not metrics(live_server)["vllm:num_requests_running"]:
            time.sleep(0.05)  # polls the server
        began_s = time.monotonic()
        number = in_time(
            lambda: control.call(
                control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.HANG_CHIP, chip=2)
            )
        ).number
        time.sleep(1.5)  # a step has met it, and a probe asks the engine once a second

        state = in_time(partial(control.call, control_call.GET_STATE))
        assert state.stall is not None
        assert "chip 2 does not answer" in state.stall.reason
        assert state.stall.wall_left_s > 0.5 * HANG_EMULATED_S * DILATION
        assert state.faults[-1].stage is FaultStage.PENDING
        probe = in_time(lambda: readiness(live_server))
        assert probe.status_code == 503
        assert "s of wall time are left" in probe.text
        assert httpx.get(f"{live_server.url}/livez", timeout=5.0).status_code == 200
        assert metrics(live_server)["ultraserve_stall_wall_seconds"] > 100.0
        assert "s of wall time" in ask(live_server, "state")

        in_time(lambda: drain_and_resume(control))
        lost = in_time(
            lambda: control.call(
                control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.LOSE_CHIP, chip=1)
            )
        )
        assert lost.number is not None
        healed = in_time(lambda: control.call(control_call.HEAL, chip=2))
        assert number in healed.healed

        assert [each.result(timeout=120) for each in running] == expected
        assert time.monotonic() - began_s < HANG_EMULATED_S * DILATION / 2
    control.call(control_call.HEAL)
    while (
        in_time(partial(control.call, control_call.GET_STATE)).stall is not None
    ):  # the lost chip reads its weights
        assert time.monotonic() - began_s < HANG_EMULATED_S * DILATION / 2
        time.sleep(0.1)
    assert readiness(live_server).status_code == 200


def test_events_have_each_stage_with_its_time_and_the_ranks_that_served(
    complete: Callable[..., Any], live_server: ServerProcess, control: ControlClient
) -> None:
    control.call(
        control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=2.0)
    )
    complete([40] * 30)
    assert control.call(control_call.GET_STATE).faults[-1].stage is FaultStage.DEGRADED
    control.call(control_call.HEAL, chip=1)
    number = control.call(control_call.GET_STATE).faults[-1].number
    found: list[tuple[FaultStage, float, int | None]] = []
    for event, _ in control.events(0):
        if event.fault is not None and event.fault.number == number:
            found.append((event.fault.stage, event.emulated_s, event.ranks_up))
        if found and found[-1][0] is FaultStage.HEALED:
            break

    assert [stage for stage, _, _ in found] == ["pending", "recovering", "degraded", "healed"]
    assert [ranks for _, _, ranks in found] == [4] * 4
    times = [at for _, at, _ in found]
    assert times == sorted(times)


def test_a_change_that_is_asked_for_again_with_its_key_is_done_once(
    live_server: ServerProcess,
) -> None:
    cut = ("fault", "cut-link", "--chip", "0", "--tier", "tray", "--lanes", "1", "--json")
    first, again = (
        json.loads(ask(live_server, *cut, "--idempotency-key", "one-cut")) for _ in range(2)
    )
    assert first["number"] == again["number"]
    ask(live_server, "fault", "heal", "--all")
