"""`ultraserve monitor` of a real control server with a small engine behind it."""

import json
import os
import threading
from pathlib import Path

import pytest

from serving.main import main
from serving.telemetry.neuron_tools.engine_snapshot import EngineSnapshot
from tests.e2e.server_process import free_port
from tests.serving.commands.looked_at_engine import LookedAtEngine
from tests.serving.server.control.small_engine import control_server
from tests.serving.telemetry.neuron_tools.monitor_schema import read_line


@pytest.mark.long
def test_each_line_is_neuron_monitor_s_and_counts_what_came_since_the_one_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with control_server(LookedAtEngine(4)) as address:
        arguments = ["--period", "100ms", "--count", "3", "--address", str(address)]
        assert main(["monitor", *arguments]) == 0

    lines = [read_line(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    for line in lines:
        (runtime,) = line.neuron_runtime_data
        assert (runtime.pid, runtime.error) == (os.getpid(), "")
        assert runtime.report.execution_stats.execution_summary.completed == 50
        assert runtime.report.neuroncore_counters.period == 0.5
        cores = runtime.report.neuroncore_counters.neuroncores_in_use
        assert cores["12"].neuroncore_utilization == pytest.approx(2.0)
        assert line.system_data.memory_info.memory_total_bytes > 2**30
        assert len(line.system_data.vcpu_usage.usage_data) == os.cpu_count()


@pytest.mark.long
def test_a_configuration_says_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "monitor.conf"
    config = {"period": "100ms", "system_metrics": [{"type": "memory_info"}]}
    path.write_text(json.dumps(config))
    with control_server(LookedAtEngine(4)) as address:
        assert main(["monitor", "-c", str(path), "--count", "1", "--address", str(address)]) == 0

    line = json.loads(capsys.readouterr().out)
    assert line["neuron_runtime_data"] == []
    assert list(line["system_data"]) == ["memory_info"]


@pytest.mark.long
def test_a_server_that_goes_away_is_an_error_in_the_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen, gone = threading.Event(), threading.Event()

    class Ending(LookedAtEngine):
        def look(self) -> EngineSnapshot:
            if self.shown >= 2:
                seen.set()
            return super().look()

    def serve() -> None:
        with control_server(Ending(4)) as address:
            where.append(str(address))
            listening.set()
            assert seen.wait(30)
        gone.set()

    where: list[str] = []
    listening = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert listening.wait(30)
    arguments = ["--period", "100ms", "--count", "12", "--timeout", "2", "--address", where[0]]
    assert main(["monitor", *arguments]) == 0
    thread.join()

    lines = list(map(json.loads, capsys.readouterr().out.splitlines()))
    errors = [line["neuron_runtime_data"][0]["error"] for line in lines]
    assert gone.is_set()
    assert errors[0] == ""
    assert "nobody answers" in errors[-1]
    assert lines[-1]["neuron_hardware_info"]["neuron_device_count"] == 4
    assert "memory_info" in lines[-1]["system_data"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--period", "5"], "period=5: expected a time from 100ms to 24h, such as 5s"),
        (["--count", "0"], "count=0: expected at least 1"),
        (["-c", "none.conf"], "config-file=none.conf: expected a file to read"),
        (["-c", "x", "--period", "1s"], "period=1s: expected no --config-file with it"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", *arguments]) == 2

    assert capsys.readouterr().err.startswith(f"ultraserve monitor: {line}")


def test_no_server_at_first_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "--address", f"127.0.0.1:{free_port()}"]) == 2

    assert "nobody answers; is `ultraserve serve` running" in capsys.readouterr().err
