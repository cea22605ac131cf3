"""Shares of requests in time, over what is recent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.recent_times import KEPT_MAX, LEAST, RecentTimes


def test_a_share_by_hand() -> None:
    times = RecentTimes()
    times.add(1.0, [0.2] * 99)
    assert times.share_within(0.5, since_s=0.0) is None  # one too few to tell
    times.add(2.0, [0.5, 0.6, 0.7])
    assert times.share_within(0.5, since_s=0.0) == 100 / 102
    assert times.share_within(0.6, since_s=0.0) == 101 / 102
    assert times.share_within(0.5, since_s=1.0) is None  # what came until then is not asked about


def test_the_oldest_are_forgotten() -> None:
    times = RecentTimes()
    times.add(1.0, [9.0] * KEPT_MAX)
    times.add(2.0, [0.1] * KEPT_MAX)
    assert times.share_within(1.0, since_s=0.0) == 1.0


@pytest.mark.long
@given(st.lists(st.floats(0, 10), min_size=LEAST, max_size=3 * LEAST), st.floats(0, 10))
def test_it_is_the_share_of_what_was_added(times_s: list[float], limit_s: float) -> None:
    times = RecentTimes()
    for number, each in enumerate(times_s):
        times.add(float(number), [each])
    share = times.share_within(limit_s, since_s=-1.0)
    assert share is not None
    assert round(share * len(times_s)) == len([each for each in times_s if each <= limit_s])
