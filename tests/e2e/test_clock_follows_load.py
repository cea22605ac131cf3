"""`--clock auto` on a live server: it follows the load, and all that tells its time agrees."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.measures.measurement import measure_run
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.runs.run import run
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.workload_spec import WorkloadSpec
from serving.wire import control_call
from tests.e2e.server_answers import control, metrics
from tests.e2e.server_process import ULTRASERVE, ServerProcess, started

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MODEL = "qwen3-30b-a3b"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    arguments = (
        *("--model", MODEL, "--weights", "none", "--chips", "4", "--max-model-len", "1024"),
        *("--expect-concurrency", "1000", "--disable-uvicorn-access-log"),
    )
    with started(ULTRASERVE, *arguments) as process:
        process.wait_ready()
        yield process


def test_a_clock_that_began_for_another_load_finds_this_one_s(
    server: ServerProcess, tmp_path: Path
) -> None:
    began = httpx.get(f"{server.url}/clock").json()
    assert began["clock"] == "auto"
    assert [each["epoch"] for each in began["epochs"]] == [0]
    workload = WorkloadSpec(
        input_lengths=parse_lengths("32"), output_lengths=parse_lengths("200"), sessions=2_000
    )
    arrivals = ArrivalSpec(concurrency="8", duration_s=12.0, wall_time=True)
    options = RunOptions(
        server=ServerOptions(url=server.url),
        classes=(ClassOptions(name="default", workload=workload, arrivals=arrivals),),
        results=tmp_path / "run.jsonl",
    )
    record = asyncio.run(run(options, command="the command"))

    # It began for 1,000 requests at a time; 8 need less of the host.
    assert record.epochs
    assert record.epochs[-1].dilation < began["epochs"][0]["dilation"]
    measures = measure_run(record)
    assert not [words for words in measures.warnings if "dilation went from" in words]
    assert measures.window_s is not None
    assert record.end is not None
    # The server's own emulated seconds, around the window, are those that its epochs come to.
    ran_s = record.end.end.emulated_s - record.header.start.emulated_s  # type: ignore[operator]
    assert measures.window_s == pytest.approx(ran_s, rel=0.15, abs=0.5)


def test_everything_that_tells_the_clock_tells_the_same(server: ServerProcess) -> None:
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    page, epochs = metrics(server), httpx.get(f"{server.url}/clock").json()["epochs"]
    with control(server) as client:
        state = client.call(control_call.GET_STATE)

    last = epochs[-1]
    assert float(answer.headers["x-ultraserve-dilation"]) == last["dilation"]
    assert int(answer.headers["x-ultraserve-clock-epoch"]) == last["epoch"]
    assert page["ultraserve_clock_dilation"] == last["dilation"] == state.dilation
    assert page["ultraserve_clock_epoch"] == last["epoch"] == state.clock_epoch
    assert page["ultraserve_clock_epoch_start_unix_seconds"] == pytest.approx(last["from_unix_s"])
    assert last["from_unix_s"] < time.time()
    assert page["ultraserve_clock_epoch_start_emulated_seconds"] == pytest.approx(
        last["from_emulated_s"]
    )
    assert [each.load for each in state.host_ratios if each.chosen] == [
        "decode, 1000 requests expected"
    ]
    assert len(state.host_ratios) == 5
    assert server.log().count("wall seconds for an emulated one") == 5
