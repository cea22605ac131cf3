"""A run's attainment of a level, and whether it is met."""

import numpy as np
from numpy.typing import NDArray

from loadgen.measures.percentile import percentile
from loadgen.measures.slo import Bound
from serving.traffic.serving_run import ServingRun

Bools = NDArray[np.bool_]


def attainment(run: ServingRun, bound: Bound, among: Bools | None = None) -> float:
    """Share of requests that kept the limit; 1 for none. The upper bound for a stopped run."""
    missed = run.missed(bound) if among is None else run.missed(bound)[among]
    return (len(missed) - int(missed.sum())) / len(missed) if len(missed) else 1.0


def meets(run: ServingRun, bound: Bound, among: Bools | None = None) -> bool | None:
    """Whether enough requests kept the limit; None if a stopped run leaves it open."""
    if attainment(run, bound, among) < bound.share:
        return False
    finished = run.finished if among is None else run.finished[among]
    return True if finished.all() else None


def tpot_percentile_s(run: ServingRun, q: float, among: Bools | None = None) -> float:
    """The least TPOT that q percent of the requests with more than one token kept."""
    several = run.traffic.output_tokens > 1
    return percentile(run.tpot_s[several if among is None else several & among], q)
