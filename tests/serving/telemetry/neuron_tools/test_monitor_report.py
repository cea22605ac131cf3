"""neuron-monitor's report of an engine, field for field, and as counters count."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.neuron_tools.engine_snapshot import Between, EngineSnapshot
from serving.telemetry.neuron_tools.monitor_config import (
    MonitorConfig,
    RuntimeEntry,
    everything,
)
from serving.telemetry.neuron_tools.monitor_report import MonitorReport, Reading
from serving.telemetry.neuron_tools.runtime_groups import neuroncore_counters
from serving.wire.machine_state import ChipHealth, SleepState
from tests.serving.telemetry.neuron_tools.host_samples import a_host
from tests.serving.telemetry.neuron_tools.looks import GIB, a_chip, a_lease, a_snapshot
from tests.serving.telemetry.neuron_tools.monitor_schema import MonitorLine, read_line


def reading(wall_s: float, look: EngineSnapshot | None, error: str = "") -> Reading:
    host = a_host(wall_s, user_s=wall_s / 2, idle_s=wall_s / 2)
    return Reading(host=host, engine=look, error=error, pid=42, tag="42")


def a_line(first: EngineSnapshot, second: EngineSnapshot) -> MonitorLine:
    report = MonitorReport(everything(), reading(10.0, first))
    return read_line(msgspec.json.encode(report.update(reading(15.0, second))))


def test_the_line_says_by_hand_what_an_engine_did_in_five_seconds() -> None:
    line = a_line(
        a_snapshot(4, emulated_s=100.0, steps=1000), a_snapshot(4, emulated_s=104.0, steps=1500)
    )

    (runtime,) = line.neuron_runtime_data
    assert (runtime.pid, runtime.neuron_runtime_tag, runtime.error) == (42, "42", "")
    counters = runtime.report.neuroncore_counters
    assert counters.period == 4.0  # emulated
    assert list(counters.neuroncores_in_use) == [str(core) for core in range(16)]
    core = counters.neuroncores_in_use["13"]  # of chip 3, busy for 4 of 200 seconds
    assert core.neuroncore_utilization == pytest.approx(2.0)
    assert core.flops == 2e12  # a fourth of 8 TFLOPS
    assert isinstance(core.v4d, dict)
    assert list(core.v4d) == ["nc_v4.26", "nc_v4.27"]
    assert core.v4d["nc_v4.26"].neuroncore_utilization == pytest.approx(2.0)
    stats = runtime.report.execution_stats
    assert stats.execution_summary.completed == 500
    assert stats.latency_stats.total_latency is not None
    assert stats.latency_stats.device_latency is not None
    assert stats.latency_stats.total_latency.p99 == 0.004
    assert stats.latency_stats.device_latency.p99 == 0.002


def test_memory_is_by_core_in_the_vendor_s_categories_and_adds_up() -> None:
    (runtime,) = a_line(a_snapshot(4), a_snapshot(4)).neuron_runtime_data
    used = runtime.report.memory_used.neuron_runtime_used_bytes
    core = used.usage_breakdown.neuroncore_memory_usage["5"]

    assert core.constants == 5 * GIB
    assert core.tensors == 20 * GIB
    assert core.model_shared_scratchpad == 2 * GIB
    assert core.runtime_memory == GIB // 2
    assert core.model_code == GIB // 4
    assert used.neuron_device == 16 * (27 * GIB + 3 * GIB // 4)
    assert used.host == 0
    (model,) = runtime.report.memory_used.loaded_models
    assert (model.name, model.is_running, len(model.subgraphs)) == ("qwen3-30b-a3b", True, 16)
    last = model.subgraphs["sg_15"]
    assert (last.neuroncore_index, last.neuron_device_index) == (15, 3)
    assert last.memory_used_bytes.neuron_device == 5 * GIB + GIB // 4


def test_the_hardware_and_the_instance_are_named_and_what_is_not_there_is_called_emulated() -> None:
    line = a_line(a_snapshot(4), a_snapshot(4))

    assert msgspec.to_builtins(line.neuron_hardware_info) == {
        "neuron_device_type": "trainium3",
        "neuron_device_version": "v5",
        "neuroncore_version": "v4d",
        "neuron_device_count": 4,
        "neuron_device_memory_size": 154_618_822_656,
        "neuroncore_per_device_count": 4,
        "logical_neuroncore_config": 2,
        "error": "",
    }
    instance = msgspec.to_builtins(line.instance_info)
    assert instance.pop("instance_type") == "trn3-nl72x2"
    assert instance.pop("error") == ""
    assert set(instance.values()) == {"emulated"}
    assert [
        device.neuron_device_index for device in line.system_data.neuron_hw_counters.neuron_devices
    ] == [0, 1, 2, 3]


def test_trainium2_has_the_vendor_s_own_names() -> None:
    looks = [a_snapshot(4, system="trn2.48xlarge", emulated_s=100.0 + 4 * n) for n in range(2)]
    line = a_line(*looks)

    hardware = line.neuron_hardware_info
    assert (hardware.neuron_device_type, hardware.neuron_device_version) == ("trainium2", "v4")
    assert hardware.neuroncore_version == "v3d"
    assert hardware.neuron_device_memory_size == 103_079_215_104
    core = line.neuron_runtime_data[0].report.neuroncore_counters.neuroncores_in_use["1"]
    assert isinstance(core.v3d, dict)
    assert list(core.v3d) == ["nc_v3.2", "nc_v3.3"]


def test_one_physical_core_is_one_logical_core_and_shares_its_stack() -> None:
    line = a_line(a_snapshot(2, lnc=1), a_snapshot(2, lnc=1, emulated_s=104.0))

    runtime = line.neuron_runtime_data[0].report
    cores = runtime.neuroncore_counters.neuroncores_in_use
    assert len(cores) == 16
    assert cores["0"].v4d is msgspec.UNSET
    assert line.neuron_hardware_info.neuroncore_version == "v4"
    memory = runtime.memory_used.neuron_runtime_used_bytes
    assert memory.usage_breakdown.neuroncore_memory_usage["9"].tensors == 10 * GIB
    assert memory.neuron_device == 2 * 4 * (27 * GIB + 3 * GIB // 4)


@pytest.mark.long
def test_at_144_chips_every_core_is_there_once() -> None:
    line = a_line(a_snapshot(144), a_snapshot(144, emulated_s=101.0))

    runtime = line.neuron_runtime_data[0].report
    assert len(runtime.neuroncore_counters.neuroncores_in_use) == 576
    assert len(runtime.memory_used.loaded_models[0].subgraphs) == 576
    assert runtime.neuroncore_counters.neuroncores_in_use["575"].neuroncore_utilization == (
        pytest.approx(72.0)
    )


def test_chips_that_are_lost_hung_spare_or_lent_are_not_in_use() -> None:
    chips = (
        a_chip(0),
        a_chip(1, health=ChipHealth.LOST, rank=None),
        a_chip(2, health=ChipHealth.HUNG),
        a_chip(3, spare=True, rank=None),
        a_chip(4, phase="training"),
        a_chip(5, health=ChipHealth.SLOW, slow_factor=2.0),
    )
    look = a_snapshot(6, chips=chips, leases=(a_lease(4),))

    in_use = neuroncore_counters(Between.of(None, look))["neuroncores_in_use"]
    assert list(in_use) == [str(core) for core in (*range(4), *range(20, 24))]


def test_a_training_job_is_an_application_of_its_own() -> None:
    chips = (a_chip(0), a_chip(1, phase="training", rank=None))
    first = a_snapshot(2, chips=chips, leases=(a_lease(1, steps=10),))
    second = a_snapshot(2, chips=chips, leases=(a_lease(1, steps=13),), emulated_s=104.0)
    engine, job = a_line(first, second).neuron_runtime_data

    assert (job.neuron_runtime_tag, job.pid) == ("lease-3", 0)
    assert job.report.execution_stats.execution_summary.completed == 3
    assert job.report.neuroncore_counters.neuroncores_in_use == {}
    assert "not metered" in job.report.neuroncore_counters.error
    memory = job.report.memory_used.neuron_runtime_used_bytes.usage_breakdown
    assert list(memory.neuroncore_memory_usage) == ["4", "5", "6", "7"]
    engines = engine.report.memory_used.neuron_runtime_used_bytes.usage_breakdown
    assert list(engines.neuroncore_memory_usage) == ["0", "1", "2", "3"]


def test_a_job_that_has_ended_is_no_application_any_more_and_one_that_begins_is() -> None:
    lent = a_snapshot(2, leases=(a_lease(1),))
    report = MonitorReport(everything(), reading(0.0, a_snapshot(2)))
    tags = []
    for number, look in enumerate((a_snapshot(2), lent, lent, a_snapshot(2)), start=1):
        line = read_line(msgspec.json.encode(report.update(reading(5.0 * number, look))))
        tags.append([runtime.neuron_runtime_tag for runtime in line.neuron_runtime_data])

    assert tags == [["42"], ["42", "lease-3"], ["42", "lease-3"], ["42"]]


def test_faults_are_errors_of_the_period_in_which_they_happen() -> None:
    before = a_snapshot(faults_by_kind={"slow-chip": 1})
    now = a_snapshot(
        faults_by_kind={"slow-chip": 2, "lose-chip": 1, "fail-stack": 1, "cut-link": 3},
        emulated_s=104.0,
    )
    stats = a_line(before, now).neuron_runtime_data[0].report.execution_stats

    assert stats.error_summary.hardware == 2
    assert stats.error_summary.transient == 4
    assert stats.error_summary.generic == 0


def test_without_a_step_there_is_no_latency() -> None:
    stats = (
        a_line(a_snapshot(), a_snapshot(emulated_s=104.0))
        .neuron_runtime_data[0]
        .report.execution_stats
    )

    assert stats.execution_summary.completed == 0
    assert stats.latency_stats.total_latency is None
    assert stats.latency_stats.device_latency is None


def test_an_engine_that_started_again_counts_from_its_start() -> None:
    runtime = a_line(
        a_snapshot(emulated_s=100.0, steps=1000), a_snapshot(emulated_s=8.0, steps=40)
    ).neuron_runtime_data[0]

    assert runtime.report.neuroncore_counters.period == 8.0
    assert runtime.report.execution_stats.execution_summary.completed == 40


def test_weights_that_sleep_are_the_host_s_constants_and_the_model_does_not_run() -> None:
    sleep = SleepState(asleep=("weights", "kv_cache"), level=1, host_bytes=7 * GIB)
    memory = a_line(a_snapshot(), a_snapshot(sleep=sleep)).neuron_runtime_data[0].report.memory_used

    assert memory.neuron_runtime_used_bytes.host == 7 * GIB
    assert memory.neuron_runtime_used_bytes.usage_breakdown.host.constants == 7 * GIB
    assert memory.loaded_models[0].is_running is False


def test_an_engine_that_does_not_answer_is_an_error_and_counts_on_when_it_does() -> None:
    report = MonitorReport(everything(), reading(0.0, a_snapshot(steps=1000, emulated_s=100.0)))
    lost = report.update(reading(5.0, None, "nobody answers"))
    found = report.update(reading(10.0, a_snapshot(steps=1300, emulated_s=103.0)))

    (runtime,) = lost["neuron_runtime_data"]
    assert runtime["error"] == "nobody answers"
    assert list(runtime["report"]) == ["neuron_runtime_vcpu_usage"]
    assert lost["system_data"]["vcpu_usage"]["average_usage"]["user"] == pytest.approx(25.0)
    assert lost["neuron_hardware_info"]["neuron_device_count"] == 4
    stats = found["neuron_runtime_data"][0]["report"]["execution_stats"]
    assert (stats["execution_summary"]["completed"], stats["period"]) == (300, 3.0)


def test_only_what_is_asked_for_is_there_each_in_its_period() -> None:
    config = MonitorConfig(
        runtimes=(
            RuntimeEntry(
                tag_filter="^42$",
                groups={"neuroncore_counters": 2.0},
            ),
        ),
        system={"memory_info": 3.0},
    )
    report = MonitorReport(config, reading(0.0, a_snapshot(emulated_s=100.0)))
    seen: list[tuple[float | None, Any, Any]] = []
    while (due_s := report.next_wall_s) is not None and due_s < 7:
        line = report.update(reading(due_s, a_snapshot(emulated_s=100.0 + due_s)))
        (runtime,) = line["neuron_runtime_data"]
        assert list(runtime["report"]) == ["neuroncore_counters"]
        host = line["system_data"].get("memory_info", {})
        seen.append((due_s, runtime["report"]["neuroncore_counters"]["period"], host.get("period")))

    # At 2 s the host's group, which is not due, has its first reading all the same.
    assert seen == [(2.0, 2.0, 2.0), (3.0, 2.0, 1.0), (4.0, 2.0, 1.0), (6.0, 2.0, 3.0)]


def test_a_filter_that_matches_nobody_leaves_the_host() -> None:
    config = replace_filter(everything(), "^nobody$")
    report = MonitorReport(config, reading(0.0, a_snapshot()))
    line = report.update(reading(5.0, a_snapshot()))

    assert line["neuron_runtime_data"] == []
    assert set(line["system_data"]) == {"neuron_hw_counters", "vcpu_usage", "memory_info"}


def replace_filter(config: MonitorConfig, tag_filter: str) -> MonitorConfig:
    (entry,) = config.runtimes
    entries = (RuntimeEntry(tag_filter=tag_filter, groups=entry.groups),)
    return MonitorConfig(runtimes=entries, system=config.system)


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 50)), min_size=1, max_size=8))
def test_periods_counted_one_after_another_are_the_whole(moves: list[tuple[int, int]]) -> None:
    report = MonitorReport(everything(), reading(0.0, a_snapshot(1)))
    emulated_s, steps, seconds, completed = 100.0, 1000, 0.0, 0
    for number, (more_ms, more_steps) in enumerate(moves, start=1):
        emulated_s, steps = emulated_s + more_ms / 1000, steps + more_steps
        look = a_snapshot(1, emulated_s=emulated_s, steps=steps)
        line = read_line(msgspec.json.encode(report.update(reading(5.0 * number, look))))
        runtime = line.neuron_runtime_data[0].report
        seconds += runtime.neuroncore_counters.period
        completed += runtime.execution_stats.execution_summary.completed
        core = runtime.neuroncore_counters.neuroncores_in_use["0"]
        assert core.neuroncore_utilization == pytest.approx(0.5 if more_ms else 0.0, rel=1e-3)

    assert seconds == pytest.approx(sum(more_ms for more_ms, _ in moves) / 1000, abs=1e-9)
    assert completed == sum(more for _, more in moves)


def test_the_schema_refuses_a_line_that_lacks_a_field() -> None:
    report = MonitorReport(everything(), reading(0.0, a_snapshot()))
    line = report.update(reading(5.0, a_snapshot()))
    del line["neuron_runtime_data"][0]["report"]["execution_stats"]["error_summary"]["model"]

    with pytest.raises(msgspec.ValidationError, match="missing required field `model`"):
        read_line(json.dumps(line))
