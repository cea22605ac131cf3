"""This host's own figures, against the kernel's."""

import os
import time

import psutil
import pytest

from serving.telemetry import host_meter
from serving.telemetry.host_meter import HostMeter


@pytest.mark.long
def test_shares_are_of_one_and_memory_is_the_kernel_s() -> None:
    meter = HostMeter(os.getpid())
    first = meter.read()
    assert first.cpus == psutil.cpu_count()
    assert first.memory_total_bytes == psutil.virtual_memory().total
    assert 0 < first.memory_used_bytes < first.memory_total_bytes

    began_s = time.monotonic()
    while time.monotonic() - began_s < host_meter._READ_AGAIN_S:
        sum(range(10_000))  # this process works for as long as the meter waits
    reading = meter.read()
    assert abs(sum(reading.cpu_share.values()) - 1) < 1e-9
    assert 0 < reading.server_share["user"] <= 1
    assert set(reading.cpu_share) == {
        *("user", "nice", "system", "idle", "io_wait", "irq", "soft_irq")
    }


def test_who_reads_again_at_once_is_told_the_same() -> None:
    meter = HostMeter(os.getpid())
    assert meter.read() is meter.read()
