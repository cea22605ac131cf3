"""The console's HTTP on a live server: the stream's figures are the control service's own."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from emulator.specs.fault import Fault, FaultKind
from serving.telemetry.latency_window import LatencyReport
from serving.wire import control_call
from serving.wire.machine_snapshot import ExpertChoices, MachineSnapshot
from serving.wire.telemetry import MachineEvent
from tests.e2e.server_answers import control
from tests.e2e.server_process import ServerProcess
from tests.live_server import CHIPS, Load

pytestmark = pytest.mark.engine

SEEN_WITHIN_S = 2.0
"""Wall seconds from a fault to the reader who is told of it, with the second between two looks."""


@pytest.fixture
def looking(live_server: ServerProcess, key: str) -> Iterator[httpx.Client]:
    """A browser that has a session."""
    with httpx.Client(base_url=live_server.console_url, timeout=60, trust_env=False) as client:
        client.post("/session", json={"key": key}).raise_for_status()
        yield client


def told(client: httpx.Client, interval_s: float = 0.5) -> Iterator[tuple[str, bytes]]:
    """Each event of the stream: its name, and its data."""
    with client.stream("GET", f"/stream?interval_s={interval_s}") as response:
        name = ""
        for line in response.raise_for_status().iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, value.encode()


def firsts(client: httpx.Client, *names: str) -> dict[str, bytes]:
    """The first event of each of these names."""
    found: dict[str, bytes] = {}
    for name, data in told(client):
        found.setdefault(name, data)
        if set(names) <= set(found):
            return found
    raise AssertionError(f"the stream ended with {sorted(found)}")


def test_a_reader_is_told_what_the_control_service_says(
    live_server: ServerProcess, looking: httpx.Client
) -> None:
    with Load(live_server.url), control(live_server) as client:
        before = client.call(control_call.GET_HARDWARE)
        names = ("hardware", "latency", "admission", "daynight", "experts")
        data = firsts(looking, *names)
        after = client.call(control_call.GET_HARDWARE)

    report = msgspec.json.decode(data["hardware"], type=MachineSnapshot)
    assert before.emulated_s <= report.emulated_s <= after.emulated_s
    assert report.state.partition == before.state.partition
    assert [meter.chip for meter in report.meters] == [chip.chip for chip in report.state.chips]
    assert len(report.meters) == CHIPS
    assert before.telemetry.output_tokens <= report.telemetry.output_tokens
    assert report.telemetry.output_tokens <= after.telemetry.output_tokens
    load = msgspec.json.decode(data["experts"], type=ExpertChoices)
    assert len(load.tokens) == load.layers * load.experts
    latency = msgspec.json.decode(data["latency"], type=LatencyReport)
    assert latency.window_s <= 60.0
    assert msgspec.json.decode(data["daynight"])["groups"]
    assert msgspec.json.decode(data["admission"])["is_open"] is True


def test_latencies_are_those_of_requests_that_have_just_run(
    live_server: ServerProcess, looking: httpx.Client
) -> None:
    with Load(live_server.url) as load:
        for name, data in told(looking):
            if name != "latency" or load.answered < 3:
                continue
            latency = msgspec.json.decode(data, type=LatencyReport)
            if latency.requests:
                break
    assert latency.ttft_p50_s is not None
    assert latency.tpot_p50_s is not None
    assert latency.e2e_p50_s is not None
    assert min(latency.ttft_p50_s, latency.tpot_p50_s) > 0
    # Others' answers of the last minute are among them: each takes its first token and more.
    assert latency.ttft_p50_s <= latency.ttft_p99_s
    assert latency.tpot_p50_s <= latency.tpot_p99_s
    assert latency.e2e_p50_s <= latency.e2e_p99_s
    assert latency.e2e_p50_s > latency.tpot_p50_s


def test_a_fault_asked_for_in_json_is_seen_at_once_and_healed(
    live_server: ServerProcess, looking: httpx.Client, key: str
) -> None:
    path = "/ultraserve.v1.ControlService"
    with_key = {"Authorization": f"Bearer {key}"}
    slow: dict[str, Any] = {"fault": {"kind": "FAULT_KIND_SLOW_CHIP", "chip": 1, "factor": 2.0}}
    url = str(looking.base_url)
    asked = {"json": slow, "headers": with_key, "trust_env": False, "timeout": 60}
    injected_s, number = 0.0, 0
    try:
        for name, data in told(looking):
            if name == "hardware" and not injected_s:
                injected_s = time.monotonic()
                response = httpx.post(f"{url}{path}/InjectFault", **asked)
                number = response.raise_for_status().json()["report"]["number"]
            elif name == "happened" and number:
                event = msgspec.json.decode(data, type=MachineEvent)
                if event.fault is not None and event.fault.number == number:
                    break
        seen_s = time.monotonic() - injected_s
        assert event.fault is not None
        assert event.fault.fault == Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=2.0)
        assert seen_s < SEEN_WITHIN_S
    finally:
        healed = looking.post(f"{path}/Heal", json={"chip": 1}, headers=with_key)
    assert number in healed.raise_for_status().json()["report"]["healed"]


def test_the_stream_of_a_page_and_of_grpc_work_beside_each_other(
    live_server: ServerProcess, looking: httpx.Client
) -> None:
    stream = told(looking)
    next(stream)
    with control(live_server) as client:
        looks = client.telemetry(0.2)
        steps = [next(looks)[0].steps for _ in range(3)]
    assert steps == sorted(steps)
    assert next(stream)
    stream.close()
