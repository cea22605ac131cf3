"""One page of several processes' families: sums, and the first process's own gauges."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.process

PROCESS: Final = """
import sys
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from serving.telemetry.shared_families import SharedFamilies

number = int(sys.argv[1])
counter = Counter("ultraserve_things", "Things.")
counter.inc(number)
Histogram("vllm:times", "Times.", buckets=(1, 10)).observe(number)
Gauge("vllm:running", "Running.", multiprocess_mode="sum").set(number)
Gauge("ultraserve_held", "Held.").set_function(lambda: 10 * number)
if number == 1:
    registry = CollectorRegistry()
    registry.register(SharedFamilies())
    print(generate_latest(registry).decode())
"""


def test_counts_add_up_and_our_gauges_are_the_first_processes(tmp_path: Path) -> None:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for number in (3, 2, 1):
        page = subprocess.run(
            [sys.executable, "-c", PROCESS, str(number)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
    samples = [
        (sample.name, sample.labels.get("le"), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not sample.name.startswith(("process_", "python_"))
    ]
    assert sorted(samples, key=str) == sorted(
        [
            ("ultraserve_things_total", None, 6.0),
            ("vllm:times_bucket", "1.0", 1.0),
            ("vllm:times_bucket", "10.0", 3.0),
            ("vllm:times_bucket", "+Inf", 3.0),
            ("vllm:times_sum", None, 6.0),
            ("vllm:times_count", None, 3.0),
            ("vllm:running", None, 6.0),
            ("ultraserve_held", None, 10.0),
        ],
        key=str,
    )
    assert any(each.startswith("process_") for each in page.splitlines())
