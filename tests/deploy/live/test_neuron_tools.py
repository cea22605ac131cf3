"""`ultraserve ls`, `monitor` and `top` of a live server, against each other and its metrics."""

import json
import os
import subprocess
from collections.abc import Iterator

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from emulator.specs.fault import Fault, FaultKind
from serving.wire import control_call
from tests.e2e.server_answers import ask, control
from tests.e2e.server_process import HOST, ULTRASERVE, ServerProcess
from tests.live_server import CHIPS, MODEL, Load
from tests.serving.telemetry.neuron_tools.monitor_schema import MonitorLine, read_line

pytestmark = pytest.mark.engine

LINES_MAX = 60  # of a period of half a second: a step of the shared server may take a while


def neuron_metrics(server: ServerProcess) -> dict[str, float]:
    """The vendor's memory families, by location, and by category over all cores."""
    page = httpx.get(f"{server.url}/metrics").raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "neuron_runtime_memory_used_bytes":
                found[sample.labels["memory_location"]] = sample.value
            elif sample.name.startswith("neuroncore_memory_usage_"):
                category = sample.name.removeprefix("neuroncore_memory_usage_")
                found[category] = found.get(category, 0.0) + sample.value
    return found


@pytest.fixture
def monitor(live_server: ServerProcess) -> Iterator[Iterator[MonitorLine]]:
    """Lines of a monitor that runs until the test ends."""
    address = f"{HOST}:{live_server.control_port}"
    with subprocess.Popen(
        [*ULTRASERVE, "monitor", "--period", "500ms", "--address", address],
        stdout=subprocess.PIPE,
        env=os.environ | live_server.own_environment,
    ) as process:
        assert process.stdout is not None
        yield map(read_line, process.stdout)
        process.terminate()


def test_every_field_of_a_busy_server_is_there_and_counts_what_comes(
    live_server: ServerProcess, monitor: Iterator[MonitorLine]
) -> None:
    with Load(live_server.url):
        line = next(
            line
            for _, line in zip(range(LINES_MAX), monitor, strict=False)
            if line.neuron_runtime_data[0].report.execution_stats.execution_summary.completed
        )

    (runtime, *_) = line.neuron_runtime_data
    cores = runtime.report.neuroncore_counters.neuroncores_in_use
    assert len(cores) == 4 * CHIPS
    assert max(core.neuroncore_utilization for core in cores.values()) > 0
    assert max(core.flops for core in cores.values()) > 0
    latency = runtime.report.execution_stats.latency_stats
    assert latency.total_latency is not None
    assert latency.device_latency is not None
    assert 0 < latency.device_latency.p50 <= latency.total_latency.p50
    assert runtime.report.memory_used.loaded_models[0].name == MODEL
    assert line.neuron_hardware_info.neuron_device_count == CHIPS
    command = " ".join(psutil.Process(runtime.pid).cmdline())
    assert str(live_server.port) in command


def test_memory_is_that_of_the_metrics(
    live_server: ServerProcess, monitor: Iterator[MonitorLine]
) -> None:
    metrics = neuron_metrics(live_server)
    used = next(monitor).neuron_runtime_data[0].report.memory_used.neuron_runtime_used_bytes

    assert used.neuron_device == metrics["neuron_device"] > CHIPS * 2**30
    assert used.host == metrics["host"]
    by_core = used.usage_breakdown.neuroncore_memory_usage.values()
    for category in ("constants", "model_code", "runtime_memory", "tensors"):
        assert sum(getattr(core, category) for core in by_core) == metrics[category]


def test_a_fault_is_an_error_of_the_period_in_which_it_happens(
    live_server: ServerProcess, monitor: Iterator[MonitorLine]
) -> None:
    assert next(monitor).neuron_runtime_data[0].report.execution_stats.error_summary.transient == 0
    with control(live_server) as client:
        client.call(
            control_call.INJECT_FAULT, fault=Fault(kind=FaultKind.SLOW_CHIP, chip=1, factor=1.5)
        )
        try:
            errors = [
                line.neuron_runtime_data[0].report.execution_stats.error_summary
                for _, line in zip(range(4), monitor, strict=False)
            ]
        finally:
            client.call(control_call.HEAL)

    assert sum(error.transient for error in errors) == 1
    assert sum(error.hardware for error in errors) == 0


def test_ls_lists_the_server_s_devices_and_its_process(live_server: ServerProcess) -> None:
    devices = json.loads(ask(live_server, "ls", "-j"))

    assert [device["neuron_device"] for device in devices] == list(range(CHIPS))
    assert devices[1]["connected_to"] == [0, 2, 3]
    assert {device["memory_size"] for device in devices} == {154_618_822_656}
    (process,) = devices[0]["neuron_processes"]
    assert str(live_server.port) in process["command"]
    everybody = ask(live_server, "ls", "-a")
    assert "VLLM::EngineCore" in everybody
    assert "ls -a" in everybody


def test_top_shows_what_the_server_says(live_server: ServerProcess) -> None:
    figures = json.loads(ask(live_server, "top", "--json"))
    text = ask(live_server, "top")
    with control(live_server) as client:
        report = client.call(control_call.GET_HARDWARE)

    assert len(figures["chips"]) == CHIPS
    assert figures["device_bytes"]["tensors"] == sum(
        count
        for chip in report.state.chips
        for stack in chip.stacks
        for owner, count in stack.owner_bytes.items()
        if owner.startswith("kv")
    )
    assert figures["pue"] == report.power.pue
    assert figures["host"]["server_memory_bytes"] > 2**28
    assert f"(emulated)  lnc 2  {MODEL}" in text
    assert "not to be seen" not in text
