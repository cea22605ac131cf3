"""Simulations of a search that has an end."""

import time

from serving.simulator import Run, StopSimulation
from serving.simulator.virtual_serving import Progress
from serving.traffic.serving_run import Ending


class OutOfTime(Exception):
    """The time for a simulation is over."""


def unix_s(monotonic_s: float) -> float:
    """A time of `time.monotonic` in Unix seconds, which other processes and machines have too."""
    return time.time() + monotonic_s - time.monotonic()


def ends_at(unix_s: float) -> Progress | None:
    """Progress of a run that stops at that time; None if it never does."""

    def look(done: int, emulated_s: float) -> None:
        del done, emulated_s
        if time.time() > unix_s:
            raise StopSimulation

    return None if unix_s == float("inf") else look


def whole(run: Run) -> Run:
    """A run that had its time; raises OutOfTime for one that was stopped."""
    if run.served.ending is Ending.STOPPED:
        raise OutOfTime
    return run
