"""Worker processes, real ones, against a server with known delays."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from loadgen.clients.client import ClientSpec
from loadgen.dispatch.job import Job
from loadgen.dispatch.workers import HEAD_START_NS, Workers, WorkersEnd
from loadgen.records.result import ABORTED, Result
from tests.loadgen.dispatch.shaped_workload import ONE, TALK, closed, even, traffic
from tests.loadgen.known_server import MODEL, KnownServer

pytestmark = pytest.mark.timeout(60)


class Watcher:
    """A observer that remembers, and what the sink was given."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.chunks: Counter[str] = Counter()
        self.in_flight: list[int] = []
        self.lags: dict[int, float] = {}
        self.on_result: Callable[[], None] = lambda: None

    def keep(self, result: Result) -> None:
        self.results.append(result)
        self.on_result()

    def add_chunks(self, traffic_class: str, count: int) -> None:
        self.chunks[traffic_class] += count

    def add_result(self, result: Result) -> None:  # noqa: ARG002
        raise AssertionError("the sink tells of results")

    def set_in_flight(self, traffic_class: str, count: int) -> None:  # noqa: ARG002
        self.in_flight.append(count)

    def set_lag(self, worker: int, lag_ms: float) -> None:
        self.lags[worker] = lag_ms


def job(url: str, *traffics) -> Job:
    spec = ClientSpec(api="completions", url=url, model=MODEL, timeout_s=30)
    return Job(traffics=[(each, spec) for each in traffics])


def noting(origins: list[int]) -> Callable[[], Awaitable[int]]:
    async def origin_ns() -> int:
        origins.append(time.monotonic_ns() + HEAD_START_NS)
        return origins[-1]

    return origin_ns


def process_ids() -> list[int]:
    children = sorted(multiprocessing.active_children(), key=lambda child: child.name)
    return [child.pid for child in children if child.pid is not None]


def dispatch(
    job: Job, workers: int, watcher: Watcher, meanwhile: Callable[[Workers], None] | None = None
) -> tuple[WorkersEnd, list[int]]:
    origins: list[int] = []

    async def main() -> WorkersEnd:
        pool = Workers(job.split(workers), sink=watcher.keep, observer=watcher)
        if meanwhile is not None:
            watcher.on_result = lambda: meanwhile(pool)
        return await pool.run(noting(origins))

    return asyncio.run(main()), origins


@pytest.mark.process
def test_two_workers_send_the_whole_of_both_classes_once_from_one_start() -> None:
    watcher = Watcher()
    with KnownServer(ttft_s=(0.01, 0.02)).serving() as server:
        whole = job(
            server.url,
            traffic(even(20, gap_ms=20), sessions=[TALK, ONE] * 10, name="open"),
            traffic(closed((0, 3)), sessions=[ONE] * 15, name="closed"),
        )
        end, origins = dispatch(whole, 2, watcher)

    assert end.problem == ""
    assert len(origins) == 1
    ids = Counter((each.traffic_class, each.request_id) for each in watcher.results)
    assert len(ids) == 40 + 15
    assert set(ids.values()) == {1}
    assert {each.error for each in watcher.results} == {None}
    first_calls = {
        r.session_id: r for r in watcher.results if (r.traffic_class, r.turn) == ("open", 0)
    }
    assert [first_calls[at].intended_ns / 1e6 for at in range(20)] == [20 * at for at in range(20)]
    assert [first_calls[at].worker for at in range(20)] == [at % 2 for at in range(20)]
    assert sorted(each.lag.worker for each in end.ends) == [0, 1]
    assert sum(part.sending["closed"].unsent for part in end.ends) == 0
    assert watcher.chunks["open"] == sum(
        each.chunk_ns.size for each in watcher.results if each.traffic_class == "open"
    )


@pytest.mark.process
def test_a_worker_that_is_killed_ends_the_run_in_a_line_and_what_came_is_kept() -> None:
    killed: list[int] = []

    def kill(_: Workers) -> None:
        if not killed:
            killed.append(1)
            os.kill(process_ids()[1], signal.SIGKILL)

    watcher = Watcher()
    with KnownServer().serving() as server:
        endless = traffic(closed((0, 4), ends_ms=60_000), sessions=[ONE] * 10)
        end, _ = dispatch(job(server.url, endless), 2, watcher, kill)

    assert end.problem.startswith("worker 1 died (signal 9, SIGKILL)")
    assert "\n" not in end.problem
    assert [each.lag.worker for each in end.ends] == [0]
    assert watcher.results


@pytest.mark.process
def test_stopping_stops_every_worker_and_what_was_under_way_is_aborted() -> None:
    watcher = Watcher()
    with KnownServer(itl_s=(0.2, 0.2)).serving() as server:
        slow = traffic(even(200, gap_ms=5), sessions=[ONE] * 200)
        end, _ = dispatch(job(server.url, slow), 2, watcher, Workers.stop)

    summaries = [part.sending["default"] for part in end.ends]
    assert len(summaries) == 2
    assert all(summary.interrupted for summary in summaries)
    assert len(watcher.results) + sum(summary.unsent for summary in summaries) == 200
    assert {each.error for each in watcher.results} == {None, ABORTED}


@pytest.mark.process
def test_a_fault_of_the_sink_is_raised_and_no_process_is_left() -> None:
    ids: list[int] = []

    def fault(_: Workers) -> None:
        ids[:] = process_ids()
        raise ZeroDivisionError("the sink")

    with KnownServer().serving() as server:
        many = traffic(closed((0, 4), ends_ms=60_000), sessions=[ONE] * 10)
        with pytest.raises(ZeroDivisionError):
            dispatch(job(server.url, many), 2, Watcher(), fault)

    assert len(ids) == 2
    for process_id in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)


@pytest.mark.process
@pytest.mark.parametrize(
    "after_s", [None, 0.05, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.0, 0.6))]
)
def test_stopping_before_the_start_sends_nothing(after_s: float | None) -> None:
    watcher = Watcher()
    with KnownServer().serving() as server:
        some = traffic(even(9), sessions=[ONE] * 9)

        async def main() -> WorkersEnd:
            pool = Workers(job(server.url, some).split(2), sink=watcher.keep, observer=watcher)
            if after_s is None:
                pool.stop()
            else:
                asyncio.get_running_loop().call_later(after_s, pool.stop)
            return await pool.run(long_before_it_begins)

        end = asyncio.run(main())

    assert [part.sending["default"].interrupted for part in end.ends] == [True, True]
    assert sum(part.sending["default"].unsent for part in end.ends) == 9
    assert server.bodies == []


async def long_before_it_begins() -> int:
    await asyncio.sleep(1.5)  # the server is asked for its meters
    return time.monotonic_ns() + HEAD_START_NS


@pytest.mark.process
def test_ctrl_c_while_the_workers_start_ends_none_of_them() -> None:
    """The worst moment: from the birth of each process on, until all are ready."""
    pressed: Counter[int] = Counter()

    async def press() -> None:
        while True:
            for process_id in process_ids():
                os.kill(process_id, signal.SIGINT)
                pressed[process_id] += 1
            await asyncio.sleep(0.001)

    watcher = Watcher()
    with KnownServer().serving() as server:
        some = traffic(even(6), sessions=[ONE] * 6)

        async def main() -> WorkersEnd:
            pool = Workers(job(server.url, some).split(2), sink=watcher.keep, observer=watcher)
            pressing = asyncio.create_task(press())
            try:
                return await pool.run(noting([]))
            finally:
                pressing.cancel()

        end = asyncio.run(main())

    assert len(pressed) == 2
    assert min(pressed.values()) > 20
    assert (end.problem, len(watcher.results)) == ("", 6)


@pytest.mark.process
def test_a_job_larger_than_a_pipe_arrives_whole_in_the_event_loop_that_runs_use() -> None:
    watcher = Watcher()
    with KnownServer().serving() as server:
        some = traffic(even(4), sessions=[ONE] * 100_000)  # pickled, 1 MB
        pool = Workers(job(server.url, some).split(2), sink=watcher.keep, observer=watcher)

        async def main() -> WorkersEnd:
            return await asyncio.wait_for(pool.run(noting([])), 30)

        end = uvloop.run(main())

    assert (end.problem, len(watcher.results)) == ("", 4)


@pytest.mark.process
def test_ctrl_c_in_a_terminal_is_the_parent_s_matter() -> None:
    pressed: list[int] = []

    def press(_: Workers) -> None:
        if not pressed:
            pressed.extend(process_ids())
            for process_id in pressed:
                os.kill(process_id, signal.SIGINT)

    watcher = Watcher()
    with KnownServer().serving() as server:
        some = traffic(even(30), sessions=[ONE] * 30)
        end, _ = dispatch(job(server.url, some), 2, watcher, press)

    assert len(pressed) == 2
    assert (end.problem, len(watcher.results)) == ("", 30)


@pytest.mark.process
def test_a_worker_s_own_failure_is_said_in_a_line(tmp_path: Path) -> None:
    some = traffic(even(4), sessions=[ONE] * 4)
    url = "https://127.0.0.1:9"
    spec = ClientSpec(api="completions", url=url, model=MODEL, timeout_s=3, ca=tmp_path / "none")
    end, origins = dispatch(Job(traffics=[(some, spec)]), 2, Watcher())

    assert end.problem.startswith("worker ")
    assert "failed: OptionError: --ca=" in end.problem
    assert (end.ends, origins) == ([], [])
