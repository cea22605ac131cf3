"""`ultraserve profile` of a server while requests run."""

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server_answers import ask, metrics
from tests.e2e.server_process import ServerProcess
from tests.live_server import MODEL
from tests.serving.analysis.profile.trace_event_format import faults_of

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_recorded_run_shows_every_chip_s_engines_and_the_tokens_that_were_made(
    complete: Callable[..., Any], live_server: ServerProcess, tmp_path: Path
) -> None:
    out = tmp_path / "trace.json.gz"
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(complete, [9 + n] * 40, max_tokens=200) for n in range(4)]
        while not metrics(live_server)["vllm:num_requests_running"]:
            time.sleep(0.05)  # polls the server
        told = ask(live_server, "profile", "--seconds", "2", "--out", str(out), "--json")
        for each in running:
            each.result(timeout=120)

    summary = json.loads(told)
    assert (summary["source"], summary["model"], summary["chips"]) == ("live", MODEL, 4)
    assert summary["steps"] > 0
    assert 0 < summary["decode_tokens"] <= 800
    assert all(0 < phase["mbu"] <= 1 for phase in summary["phases"])
    assert summary["phases"][-1]["what_ifs"][0]["shorter_share"] > 0
    trace = json.loads(gzip.decompress(out.read_bytes()))
    assert faults_of(trace) == []
    drawn = {
        (event["pid"], event["name"])
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] == "engine"
    }
    assert drawn >= {(chip + 1, engine) for chip in range(4) for engine in ("tensor", "dma")}
