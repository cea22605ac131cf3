"""What the walk knows of requests that find a queue: how long they wait."""

import numpy as np
import pytest

from serving.analysis.day.day_demand import WalkTerms
from serving.analysis.day.day_walk import DayWalk
from serving.analysis.day.late_waits import LateWaits
from serving.policy.day_night.policy import Fixed
from tests.serving.analysis.day.days import CURVE, demand, walked

TERMS = WalkTerms(interval_s=60.0, look_s=120.0)


def one_group(*arrivals: int) -> DayWalk:
    """Of one from the first minute on: it serves 240 in each at most."""
    return walked(demand(*arrivals), Fixed(serving_groups=1), TERMS, groups=1)


def test_a_queue_of_a_minute_by_hand() -> None:
    """60 are left of 300, for which a group needs 15 s; half of the next 120 find them."""
    walk = one_group(120, 300, 120, 120)
    found = LateWaits.of(walk, CURVE)
    assert found.intervals.tolist() == [1, 2]
    assert found.requests.tolist() == [300.0, 60.0]
    assert found.waits_s.tolist() == [[0.0, 15.0], [15.0, 0.0]]
    assert found.sliced(3).tolist() == [[2.5, 12.5], [7.5, 7.5], [12.5, 2.5]]
    assert np.bincount(found.intervals, found.requests, 4).tolist() == walk.late.tolist()
    second = found.within(2, 4)
    assert (second.intervals.tolist(), second.requests.tolist()) == ([0], [60.0])


def test_a_queue_that_stays_is_waited_for_from_end_to_end() -> None:
    found = LateWaits.of(one_group(480, 240, 240), CURVE)
    assert found.waits_s.T.tolist() == [[0.0, 60.0], [60.0, 60.0], [60.0, 60.0]]


@pytest.mark.parametrize("arrivals", [(0, 0), (240, 100)])
def test_none_waits_below_what_a_group_serves(arrivals: tuple[int, ...]) -> None:
    found = LateWaits.of(one_group(*arrivals), CURVE)
    assert found.intervals.tolist() == []
    assert found.sliced(2).shape == (2, 0)
