"""A run against a server whose clock changes its dilation: its figures are in the server's time."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from loadgen.arrivals.arrival_spec import ArrivalSpec
from loadgen.measures.measurement import measure_run
from loadgen.records.results_file import read_results
from loadgen.records.run_record import RunRecord
from loadgen.reports.run_facts import server_facts
from loadgen.runs.options import ClassOptions, RunOptions, ServerOptions
from loadgen.runs.run import run
from loadgen.workloads.lengths import parse_lengths
from loadgen.workloads.workload_spec import WorkloadSpec
from tests.loadgen.following_server import FollowingServer

pytestmark = pytest.mark.timeout(60)

CHANGES = ((1.5, 1.0), (3.5, 8.0))
RATE_PER_S = 12.0


def recorded(
    server: FollowingServer, results: Path, *, workers: int = 1, sessions: int = 36
) -> RunRecord:
    workload = WorkloadSpec(
        input_lengths=parse_lengths("16"), output_lengths=parse_lengths("6"), sessions=sessions
    )
    arrivals = ArrivalSpec(rate=str(RATE_PER_S), gaps="constant")
    options = RunOptions(
        server=ServerOptions(url=server.url),
        classes=(ClassOptions(name="default", workload=workload, arrivals=arrivals),),
        workers=workers,
        results=results,
    )
    return asyncio.run(run(options, command="the command"))


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_latencies_and_rates_are_in_the_time_of_each_epoch(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "run.jsonl"
    asked = FollowingServer(
        seed=3, ttft_s=(0.05, 0.15), itl_s=(0.01, 0.03), changes=CHANGES, cached_tokens=0
    )
    with asked.serving() as server:
        record = recorded(server, file, workers=workers)
    replies = server.replies

    dilation = record.header.start.dilation
    assert dilation == 4.0
    assert [each.dilation for each in record.epochs] == [4.0, 1.0, 8.0]
    assert {each.error for each in record.results} == {None}

    known_s = [
        server.emulated(reply.chunk_s[-1]) - server.emulated(reply.begin_s) for reply in replies
    ]
    measured_s = [(each.ended_ns - each.sent_ns) / 1e9 / dilation for each in record.results]
    for percentile in (10, 50, 90):
        assert np.percentile(measured_s, percentile) == pytest.approx(
            np.percentile(known_s, percentile), rel=0.1, abs=0.01
        )
    # By one dilation for all they would be something else altogether.
    wall_s = np.array([reply.chunk_s[-1] - reply.begin_s for reply in replies])
    assert np.percentile(wall_s / dilation, 10) < 0.6 * np.percentile(known_s, 10)

    # Arrivals: what came between the time that an epoch was known and its end.
    sent_s = np.sort([server.emulated(reply.begin_s) for reply in replies])
    assert np.median(np.diff(sent_s)) == pytest.approx(1 / RATE_PER_S, rel=0.15)

    assert server.looks >= 4
    measures = measure_run(record)
    assert not [words for words in measures.warnings if "dilation went from" in words]
    rows = dict(server_facts(record, measures).rows)
    assert rows["clock"] == "auto: 1 emulated second is 1 to 8 wall seconds, in 3 epochs"
    assert measures.window_s is not None
    assert measures.wall_s is not None
    last_s = max(reply.chunk_s[-1] for reply in replies)
    assert measures.wall_s == pytest.approx(last_s - replies[0].begin_s, abs=0.1)
    assert measures.window_s == pytest.approx(
        server.emulated(last_s) - server.emulated(replies[0].begin_s), rel=0.05
    )

    again = read_results(file)
    assert again.epochs == record.epochs
    for ours, theirs in zip(record.results, again.results, strict=True):
        assert (ours.sent_ns, ours.ended_ns) == (theirs.sent_ns, theirs.ended_ns)
        assert ours.chunk_ns.tolist() == theirs.chunk_ns.tolist()


@pytest.mark.long
def test_a_clock_that_never_changes_leaves_stamps_as_they_are(tmp_path: Path) -> None:
    with FollowingServer(cached_tokens=0).serving() as server:
        record = recorded(server, tmp_path / "run.jsonl", sessions=6)

    assert [each.dilation for each in record.epochs] == [4.0]
    assert record.epochs[0].from_wall_ns < 0
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert all(f'"sent_ns":{each.sent_ns},' in "\n".join(lines) for each in record.results)
