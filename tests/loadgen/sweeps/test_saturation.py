"""Saturation, held against queues whose capacity is known: 100 requests a second."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from loadgen.records.estimate import Estimate
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import PointFigures, SaturationFound, SweepPoint
from loadgen.sweeps.saturation import no_more_throughput, saturation
from tests.loadgen.sweeps.queue_run import QueueRun, exponential, fixed, queue_options, record

QUEUES = {
    "M/M/1": QueueRun(service=exponential(0.01)),
    "M/D/1": QueueRun(service=fixed(0.01)),
    "D/D/1": QueueRun(service=fixed(0.01), even_arrivals=True),
    "M/M/8": QueueRun(service=exponential(0.08), servers=8),
}


def queue_run(queue: QueueRun, *, rate: float, requests: int, seed: int = 0) -> RunRecord:
    options = queue_options(requests=requests, seed=seed)
    (each,) = options.classes
    loaded = replace(each, arrivals=replace(each.arrivals, rate=f"{rate}"))
    return asyncio.run(queue(replace(options, classes=(loaded,)), ""))


@pytest.mark.long
def test_by_hand() -> None:
    # 100 a second come and 50 a second go: half of what comes late in the run is left over.
    found = saturation(
        queue_run(QueueRun(service=fixed(0.02), even_arrivals=True), rate=100, requests=400),
        closed=False,
    )

    assert found.over is True
    assert found.growth_share == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("rate", [50, 90, 100])
def test_a_server_that_keeps_up_is_not_called_saturated(queue: str, rate: float) -> None:
    runs = [queue_run(QUEUES[queue], rate=rate, requests=400, seed=seed) for seed in range(5)]

    assert [saturation(run, closed=False).over for run in runs] == [False] * 5


@pytest.mark.parametrize("queue", QUEUES)
def test_twice_the_capacity_is_seen_in_a_short_run_and_a_quarter_more_in_a_long_one(
    queue: str,
) -> None:
    for rate, requests in ((200, 400), (125, 3_000)):
        found = saturation(queue_run(QUEUES[queue], rate=rate, requests=requests), closed=False)

        assert found.over is True
        assert found.growth_share == pytest.approx(1 - 100 / rate, abs=0.12)


def test_what_is_skipped_is_not_judged() -> None:
    # All fail in the first two seconds, which are skipped, and none after.
    run = queue_run(QueueRun(service=fixed(0.001), even_arrivals=True), rate=100, requests=400)
    results = [
        replace(each, error="status 503", chunk_ns=each.chunk_ns[:0])
        if each.intended_ns < 2e9
        else each
        for each in run.results
    ]
    run = replace(run, results=results)

    assert saturation(run, closed=False).over is True
    skipping = replace(run, header=replace(run.header, skip_s=2.0))
    assert saturation(skipping, closed=False).over is False


def test_a_pipeline_that_fills_is_no_backlog() -> None:
    # Replies take 3 s more than their service, and 10 a second come for 40 s.
    slow = QueueRun(service=exponential(0.01), latency_floor_s=3.0)

    assert saturation(queue_run(slow, rate=10, requests=400), closed=False).over is False


def test_a_run_that_ends_before_its_first_replies_do_says_nothing() -> None:
    slow = QueueRun(service=fixed(0.001), latency_floor_s=30.0)
    found = saturation(queue_run(slow, rate=100, requests=400), closed=False)

    assert (found.over, "too short to say" in found.words) == (None, True)
    assert saturation(queue_run(slow, rate=1, requests=20), closed=False).over is None


def test_ten_times_the_capacity_is_seen_although_replies_outlast_the_arrivals() -> None:
    found = saturation(queue_run(QUEUES["M/M/1"], rate=1_000, requests=400), closed=False)

    assert found.over is True


def test_a_server_that_refuses_load_is_saturated() -> None:
    refusing = QueueRun(service=fixed(0.001), fails=0.2)
    found = saturation(queue_run(refusing, rate=50, requests=400), closed=False)

    assert (found.over, "of the requests failed" in found.words) == (True, True)


def test_one_failure_is_no_refusal() -> None:
    due_s = np.arange(400) / 50
    failed = np.arange(400) == 7
    run = record(queue_options(requests=400), due_s, due_s + 0.001, failed)

    assert saturation(run, closed=False).over is False


def test_in_a_closed_loop_the_backlog_says_nothing() -> None:
    run = queue_run(QUEUES["M/M/1"], rate=500, requests=400)

    assert saturation(run, closed=True).over is False


def wide(load: float, rate: float | None) -> SweepPoint:
    figures = PointFigures(requests_per_s=None if rate is None else Estimate(value=rate))
    found = SaturationFound(over=False, words="")
    return SweepPoint(
        load=load,
        stage="grid",
        results="",
        seed=0,
        requests=1,
        figures=figures,
        saturation=found,
    )


def test_two_steps_that_bring_next_to_nothing_end_a_closed_loop_s_sweep() -> None:
    rates = {1: 10.0, 2: 20.0, 4: 40.0, 8: 41.0, 16: 41.5}
    points = [wide(load, rate) for load, rate in rates.items()]

    assert no_more_throughput(points)
    assert not no_more_throughput(points[:4])
    assert not no_more_throughput(points[:2])
    assert not no_more_throughput([*points[:4], wide(16, 50.0)])
    assert not no_more_throughput([*points[:4], wide(16, None)])
