"""A search's time on processors that have nothing else to do."""

import time

import pytest

from tests.benchmarks.virtual_workers import VirtualWorkers


def busy(seconds: float) -> float:
    """Of processor time; returns when it began, by the workers' clock."""
    began_s, until_s = time.monotonic(), time.process_time() + seconds
    while time.process_time() < until_s:
        pass
    return began_s


def test_tasks_go_to_the_worker_that_is_free_first_and_waiting_takes_no_time() -> None:
    workers = VirtualWorkers(2)
    with workers.clock():
        time.sleep(0.1)  # as another program would make it wait
        first, second, third = workers.map(busy, [0.03, 0.01, 0.02])
        took_s = workers.now_s()

    assert first == pytest.approx(second, abs=0.008)
    assert third - first == pytest.approx(0.01, abs=0.008)
    assert took_s == pytest.approx(0.03, abs=0.008)


def test_what_is_done_between_tasks_follows_the_last() -> None:
    workers = VirtualWorkers(2)
    with workers.clock():
        workers.map(busy, [0.02])
        busy(0.02)
        assert workers.now_s() == pytest.approx(0.04, abs=0.008)
