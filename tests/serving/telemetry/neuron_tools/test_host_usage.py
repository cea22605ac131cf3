"""A host's usage between two samples, and that of this very machine."""

import os

import psutil
import pytest

from serving.telemetry.neuron_tools.device_inventory import DeviceProcess
from serving.telemetry.neuron_tools.host_sample import (
    KINDS,
    ServerSample,
    host_sample,
    memory_info,
    runtime_vcpu_usage,
    vcpu_usage,
)
from serving.telemetry.neuron_tools.server_processes import ServerProcesses, server_processes
from tests.serving.telemetry.neuron_tools.host_samples import a_host


def test_shares_are_of_the_time_between_the_samples() -> None:
    usage = vcpu_usage(a_host(10.0, user_s=5.0, idle_s=5.0), a_host(14.0, user_s=6.0, idle_s=8.0))

    assert usage["period"] == 4.0
    assert usage["usage_data"]["0"]["user"] == pytest.approx(25.0)
    assert usage["usage_data"]["0"]["idle"] == pytest.approx(75.0)
    assert usage["usage_data"]["1"]["idle"] == pytest.approx(100.0)
    assert usage["average_usage"]["user"] == pytest.approx(12.5)
    assert usage["context_switch_count"] == 4000
    assert tuple(usage["average_usage"]) == KINDS


def test_no_time_between_samples_is_no_usage() -> None:
    usage = vcpu_usage(a_host(10.0), a_host(10.0))

    assert set(usage["average_usage"].values()) == {0.0}


def test_memory_is_that_of_the_later_sample() -> None:
    info = memory_info(a_host(1.0), a_host(3.0))

    assert (info["period"], info["memory_used_bytes"]) == (2.0, 16 * 2**30)


def test_a_server_s_time_is_a_share_of_all_vcpus_and_one_that_ended_is_not_subtracted() -> None:
    before = ServerSample(cpu_s={1: (10.0, 1.0), 2: (100.0, 50.0)}, memory_bytes=5)
    now = ServerSample(cpu_s={1: (11.0, 1.5), 3: (1.0, 0.0)}, memory_bytes=5)
    usage = runtime_vcpu_usage(a_host(10.0, server=before), a_host(14.0, server=now))

    # Two vCPUs for four seconds: 1 s of process 1 and 1 s of process 3, which is new.
    assert usage["vcpu_usage"] == {"user": pytest.approx(25.0), "system": pytest.approx(6.25)}
    assert usage["error"] == ""


def test_a_server_elsewhere_is_an_error_and_no_figure() -> None:
    usage = runtime_vcpu_usage(a_host(10.0), a_host(14.0))

    assert usage["vcpu_usage"] == {"user": 0.0, "system": 0.0}
    assert "not on this machine" in usage["error"]


def test_a_sample_is_of_this_machine() -> None:
    here = ServerProcesses(root=DeviceProcess(pid=os.getpid(), command="pytest"), tag="here")
    sample = host_sample(1.0, here)

    assert len(sample.vcpus) == psutil.cpu_count()
    assert sample.memory_total_bytes == psutil.virtual_memory().total
    assert sample.server is not None
    assert os.getpid() in sample.server.cpu_s
    assert 2**20 < sample.server.memory_bytes < sample.memory_total_bytes


def test_a_process_that_has_ended_is_left_out() -> None:
    gone = ServerProcesses(root=DeviceProcess(pid=2**22 - 1, command=""), tag="gone")

    assert gone.pids() == ()
    sample = host_sample(1.0, gone)
    assert sample.server == ServerSample(cpu_s={}, memory_bytes=0)


def test_nobody_is_found_on_another_machine() -> None:
    assert server_processes("192.0.2.1", 8001) is None  # an address that documents are given
    assert server_processes("no.such.host.invalid", 8001) is None
