"""Whole sweeps in virtual time against queues whose knee and whose limit are known.

A server takes 100 requests a second. In M/M/1 the time in the system is exponential with the rate
mu - lambda, so the p99 is ln(100) / (mu - lambda), and the limit for a p99 of L is mu - ln(100)/L.
"""

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import LoadError, ServerError
from loadgen.records.run_record import RunRecord
from loadgen.records.sweep_record import Axis, SweepRecord
from loadgen.runs.options import RunOptions
from loadgen.sweeps.options import SweepOptions
from loadgen.sweeps.sweep import RunAt, run_sweep
from tests.loadgen.sweeps.queue_run import QueueRun, exponential, fixed, queue_options, record

MM1 = QueueRun(service=exponential(0.01))
GRID = (20.0, 40.0, 60.0, 80.0, 100.0, 120.0)


def sweep(
    run_at: RunAt,
    *,
    loads: tuple[float, ...] = GRID,
    axis: Axis = "rate",
    requests: int = 600,
    slo: str = "",
    seed: int = 0,
    repeats: int = 4,
) -> SweepRecord:
    options = SweepOptions(
        run=queue_options(requests=requests, slo=slo, seed=seed),
        axis=axis,
        loads=loads,
        vary="default",
        folder=Path("sweep"),
        repeats=repeats,
    )
    return asyncio.run(run_sweep(options, run_at, command="", say=lambda _: None))


@pytest.mark.slow
def test_the_highest_load_is_below_the_true_limit_and_near_it() -> None:
    limit = 100 - math.log(10) / 0.1  # p90 of at most 100 ms: 77 a second
    found = [sweep(MM1, slo="ttft=100ms@p90", seed=1_000 * each).best for each in range(6)]
    loads = [best.load for best in found if best is not None and best.load is not None]

    assert len(loads) == 6
    # A wrong verdict may happen once in 20 at the limit itself, and less below.
    assert sum(load > limit for load in loads) <= 1
    assert min(loads) > 0.75 * limit


@pytest.mark.slow
def test_more_requests_come_nearer_to_the_limit() -> None:
    limit = 100 - math.log(10) / 0.1
    best = sweep(MM1, slo="ttft=100ms@p90", requests=4_000).best

    assert best is not None
    assert best.load is not None
    assert best.above is not None
    assert 0.9 * limit < best.load < 1.02 * limit
    assert best.load < best.above <= best.load * 1.15


@pytest.mark.slow
def test_where_service_is_never_the_same_twice_the_knee_is_half_of_the_capacity() -> None:
    knee = sweep(MM1, loads=tuple(range(10, 100, 10)), requests=8_000).knee

    assert knee is not None
    assert knee.low <= 50 <= knee.high
    assert 40 <= knee.load <= 60


def test_it_stops_where_the_server_is_over_saturated() -> None:
    swept = sweep(MM1, loads=(50, 100, 200, 400, 800))

    assert [point.load for point in swept.points] == [50, 100, 200]
    assert swept.stopped.startswith("over-saturated at 200: the backlog grew by ")
    assert swept.best is None


def test_a_closed_loop_stops_where_more_concurrency_brings_nothing() -> None:
    queue = QueueRun(service=fixed(0.04), servers=4)
    swept = sweep(queue, axis="concurrency", loads=(1, 2, 4, 8, 16, 32, 64))

    assert [point.load for point in swept.points] == [1, 2, 4, 8, 16]
    assert "no longer brings more throughput" in swept.stopped
    assert swept.knee is not None
    assert swept.knee.load == 4
    assert swept.highest_requests_per_s is not None
    assert swept.highest_requests_per_s.value == pytest.approx(100, rel=0.01)


@pytest.mark.long
def test_the_widest_closed_loop_that_keeps_a_limit_is_found_exactly_without_chance() -> None:
    # 4 servers of 40 ms: n in flight take n / 100 s from 4 on, so 250 ms are kept by 25.
    queue = QueueRun(service=fixed(0.04), servers=4)
    best = sweep(queue, axis="concurrency", loads=(1, 2, 4, 8, 16, 32), slo="ttft=252ms@p90").best

    assert best is not None
    assert best.load in (24, 25)  # within the precision of 5 %
    assert best.above == best.load + 1


@pytest.mark.long
def test_every_run_has_a_seed_and_a_file_of_its_own_and_repeats_are_longer() -> None:
    swept = sweep(MM1, slo="ttft=100ms@p90", requests=300)
    first = {point.load: point.requests for point in reversed(swept.points)}
    loads = [point.load for point in swept.points]
    again = [
        point.requests
        for position, point in enumerate(swept.points)
        if point.load in loads[:position]
    ]

    assert [point.seed for point in swept.points] == list(range(len(swept.points)))
    assert len({point.results for point in swept.points}) == len(swept.points)
    assert set(first.values()) == {300}
    assert again
    assert all(requests in (600, 1_200, 2_400) for requests in again)


def test_where_every_load_keeps_it_nothing_is_said_of_more() -> None:
    best = sweep(MM1, loads=(5, 10), slo="ttft=900ms@p90").best

    assert best is not None
    assert (best.load, best.above) == (10, None)
    assert "more may do so too" in best.words


@pytest.mark.long
def test_a_load_that_saturates_has_missed_however_short_the_run() -> None:
    # 600 requests at 200 a second wait 3 s at most; a longer run would wait longer.
    swept = sweep(QueueRun(service=fixed(0.01)), loads=(50, 200), slo="ttft=9s@p90")
    shares = {point.load: point.bounds[0].share for point in swept.points}
    verdicts = {point.load: point.verdict for point in swept.points}

    assert shares[200] == 1
    assert verdicts[200] == "missed"
    assert swept.best is not None
    assert swept.best.load is not None
    assert swept.best.load < 125


@pytest.mark.long
def test_where_none_keeps_it_lower_loads_are_tried_and_given_up() -> None:
    swept = sweep(QueueRun(service=fixed(0.01)), loads=(8, 16), slo="ttft=5ms@p90")

    assert swept.best is not None
    assert (swept.best.load, swept.best.above) == (None, 0.125)
    assert min(point.load for point in swept.points) == 0.125


@pytest.mark.long
def test_too_few_requests_for_any_verdict_are_warned_of() -> None:
    swept = sweep(MM1, loads=(10,), slo="ttft=900ms@p99", requests=20, repeats=2)

    # Two repeats share 5 % on either side: z is 1.96, and 0.99 / 0.01 of its square are needed.
    assert any("takes 381 requests without a miss" in note for note in swept.notes)
    assert swept.best is not None
    assert swept.best.load is None


def test_a_server_that_answers_nothing_ends_the_sweep_at_once() -> None:
    swept = sweep(QueueRun(service=fixed(0.01), fails=1.0), slo="ttft=900ms")

    assert len(swept.points) == 1
    assert swept.stopped == "at 20 no request was completed"


class Breaking:
    """Does `good` runs and then fails in a way."""

    def __init__(self, good: int, how: str) -> None:
        self.good, self.how = good, how

    async def __call__(self, options: RunOptions, words: str) -> RunRecord:
        self.good -= 1
        if self.good >= 0:
            return await MM1(options, words)
        if self.how == "error":
            raise ServerError(url="http://queue", reason="is gone")
        if self.how == "cancel":
            raise asyncio.CancelledError
        if self.how == "dead":
            run = await MM1(options, words)
            assert run.end is not None
            return replace(run, end=replace(run.end, problem="the server is dead"))
        due_s = np.arange(10.0) / 1e3
        run = record(options, due_s, due_s + 0.01, np.zeros(10, dtype=np.bool_))
        assert run.end is not None
        (name,) = run.end.sending
        sending = {name: replace(run.end.sending[name], interrupted=True)}
        return replace(run, end=replace(run.end, sending=sending))


@pytest.mark.parametrize(
    ("how", "points", "stopped"),
    [("interrupt", 3, "the run at 60 was cut short"), ("cancel", 2, "ended between two runs")],
)
def test_an_interrupted_sweep_says_what_it_has(how: str, points: int, stopped: str) -> None:
    swept = sweep(Breaking(2, how), slo="ttft=900ms@p50")

    assert (swept.interrupted, swept.stopped) == (True, stopped)
    assert len(swept.points) == points
    assert swept.best is not None
    assert swept.best.load == 40
    # The run that was cut short had ten requests, at 500 a second or so: no figure is its.
    assert swept.knee is not None
    assert swept.knee.high <= 40
    assert swept.highest_requests_per_s is not None
    assert swept.highest_requests_per_s.value < 45


def test_a_run_whose_figures_are_in_another_time_ends_the_sweep() -> None:
    async def emulated_from_60(options: RunOptions, words: str) -> RunRecord:
        run = await MM1(options, words)
        assert run.end is not None
        if options.classes[0].arrivals.rate != "60":
            return run
        start = replace(run.header.start, dilation=1.0, emulated_s=0.0)
        return replace(run, header=replace(run.header, start=start))

    swept = sweep(emulated_from_60)

    assert [point.load for point in swept.points] == [20, 40]
    assert "in emulated time and those of the runs before in wall time" in swept.problem


def test_a_run_that_ended_before_its_time_ends_the_sweep() -> None:
    swept = sweep(Breaking(2, "dead"), slo="ttft=900ms@p50")

    assert (len(swept.points), swept.interrupted) == (3, False)
    assert swept.problem == "the server is dead"
    assert swept.stopped == "the run at 60 was cut short: the server is dead"
    assert swept.best is not None
    assert (swept.best.load, swept.best.words) == (
        40,
        "none above was tried: more may do so too; the search was cut short",
    )


def test_a_run_that_cannot_be_done_ends_the_sweep_but_the_first_one_raises() -> None:
    swept = sweep(Breaking(2, "error"))

    assert (len(swept.points), swept.interrupted) == (2, False)
    assert swept.problem == "a run could not be done: http://queue: is gone"
    with pytest.raises(LoadError, match="is gone"):
        sweep(Breaking(0, "error"))
