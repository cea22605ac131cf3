import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.latency_window import KEPT_MAX, WINDOW_S, LatencyWindow, RequestTimes
from serving.telemetry.recent_times import LEAST

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=300)


def test_a_minute_by_hand() -> None:
    window = LatencyWindow()
    window.add(RequestTimes(emulated_s=10.0, ttft_s=[0.5], tpot_s=[], e2e_s=[]))
    window.add(RequestTimes(emulated_s=50.0, ttft_s=[0.2, 0.4], tpot_s=[0.01], e2e_s=[3.0]))
    window.add(
        RequestTimes(
            emulated_s=80.0,
            ttft_s=[0.1],
            tpot_s=[0.03, 0.02],
            e2e_s=[1.0, 2.0],
        )
    )

    report = window.report(80.0)  # the first is more than 60 s ago
    assert report.window_s == WINDOW_S
    assert report.requests == 3
    assert (report.ttft_p50_s, report.ttft_p99_s) == (0.2, 0.4)
    assert (report.tpot_p50_s, report.tpot_p99_s) == (0.02, 0.03)
    assert (report.e2e_p50_s, report.e2e_p99_s) == (2.0, 3.0)


def test_tokens_in_time_are_told_of_requests_that_began_since() -> None:
    window = LatencyWindow()
    late, quick = [0.03] * LEAST, [0.01] * 3 * LEAST
    for tpot_s, took_s in ((late, 6.0), (quick, 2.0)):
        begun = tuple((10.0 - took_s, each) for each in tpot_s)
        window.add(
            RequestTimes(emulated_s=10.0, ttft_s=[], tpot_s=tpot_s, e2e_s=[], begun_tpot=begun)
        )
    # The late ones had their first token at 4 s, the others at 8 s.
    assert window.begun_tpot.share_within(0.02, since_s=3.9) == 0.75
    assert window.begun_tpot.share_within(0.02, since_s=4.0) == 1.0
    assert window.begun_tpot.share_within(0.02, since_s=8.0) is None


def test_an_engine_that_rests_has_no_times_after_a_minute() -> None:
    window = LatencyWindow()
    assert window.report(0.0).window_s == 0.0
    window.add(RequestTimes(emulated_s=5.0, ttft_s=[0.5], tpot_s=[0.1], e2e_s=[1.0]))
    assert window.report(5.0).window_s == 5.0
    assert window.report(65.0).ttft_p50_s == 0.5
    rested = window.report(65.1)
    assert (rested.requests, rested.ttft_p50_s, rested.tpot_p99_s) == (0, None, None)


def test_of_too_many_the_newest_are_kept_and_the_window_says_how_long_that_is() -> None:
    window = LatencyWindow()
    for number in range(KEPT_MAX + 1_000):
        window.add(RequestTimes(emulated_s=number * 1e-3, ttft_s=[1.0], tpot_s=[], e2e_s=[]))
    report = window.report((KEPT_MAX + 999) * 1e-3)
    assert report.window_s == pytest.approx((KEPT_MAX - 1) * 1e-3)


@given(TIMES)
def test_figures_are_times_that_occurred_as_numpy_has_them(times_s: list[float]) -> None:
    window = LatencyWindow()
    window.add(RequestTimes(emulated_s=1.0, ttft_s=times_s, tpot_s=times_s, e2e_s=times_s))
    report = window.report(1.0)
    assert report.requests == len(times_s)
    assert report.ttft_p50_s in times_s
    below = np.mean(np.array(times_s) <= report.ttft_p99_s)
    assert below >= 0.99
    assert report.ttft_p50_s == np.quantile(times_s, 0.5, method="inverted_cdf")
