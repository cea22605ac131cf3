"""A replica's curve between the rates that were simulated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from emulator.errors import ConfigError
from serving.analysis.day.replica_curve import ReplicaCurve, falling_fit
from tests.serving.analysis.day.days import CURVE, point


def test_capacity_is_where_the_line_between_two_points_meets_the_required_share() -> None:
    # From 1.0 at 2 requests/s to 0.9 at 3: 0.99 lies a tenth of the way.
    assert CURVE.capacity_per_s == pytest.approx(2.1)


def test_values_run_in_straight_lines_and_start_idle() -> None:
    at = np.array([0.0, 0.5, 1.0, 2.5, 9.0])
    assert CURVE.chip_watts(at).tolist() == [100.0, 125.0, 150.0, 225.0, 250.0]
    assert CURVE.share("both_share", at) == pytest.approx([1.0, 1.0, 1.0, 0.95, 0.0])
    assert CURVE.seconds("ttft_p99_s", at) == pytest.approx([0.1, 0.1, 0.1, 0.25, 0.3])


def test_late_requests_grow_by_equal_ratios_between_rates_that_keep_the_target() -> None:
    points = (point(1.0, 1 - 1e-4, judged=10**12), point(3.0, 0.99, judged=10**12))
    curve = ReplicaCurve(
        points=(*points, point(4.0, 0.5)), saturated_per_s=5.0, required_share=0.99, idle_watts=1.0
    )
    at = np.array([1.0, 2.0, 3.0, 3.5, 4.0])
    late = 1.0 - curve.share("both_share", at)
    # A tenth of what is late at 3 requests/s, ten times what is at 1; a straight line to 4.
    assert late == pytest.approx([1e-4, 1e-3, 1e-2, 0.255, 0.5])


def test_from_the_last_point_on_requests_in_time_fall_to_none_at_saturation() -> None:
    at = np.array([3.0, 3.5, 4.0])
    assert CURVE.share("ttft_share", at) == pytest.approx([0.9, 0.45, 0.0])
    assert CURVE.share("tpot_share", at).tolist() == [1.0, 1.0, 1.0]


def test_a_curve_that_never_keeps_the_target_has_no_capacity() -> None:
    curve = ReplicaCurve(
        points=(point(1.0, 0.5),), saturated_per_s=2.0, required_share=0.99, idle_watts=1.0
    )
    assert curve.capacity_per_s == 0.0


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_shares_never_rise_with_the_rate_and_keep_their_weighted_mean(shares: list[float]) -> None:
    points = tuple(point(1.0 + n, share, judged=10 + n) for n, share in enumerate(shares))
    curve = ReplicaCurve(points=points, saturated_per_s=99.0, required_share=0.99, idle_watts=1.0)
    fitted = curve.share("both_share", np.arange(1.0, 1.0 + len(shares)))

    assert (np.diff(fitted) <= 1e-12).all()
    weights = [each.judged for each in points]
    assert np.average(fitted, weights=weights) == pytest.approx(np.average(shares, weights=weights))
    everywhere = np.linspace(0.0, 100.0, 1_000)
    between = curve.share("both_share", everywhere)
    assert (np.diff(between) <= 1e-12).all()
    straight = np.interp(
        everywhere[everywhere <= len(shares)], np.arange(1.0, 1 + len(shares)), fitted
    )
    assert (between[: len(straight)] >= straight - 1e-12).all()  # queues bend upwards


@pytest.mark.parametrize("rates", [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0), ()])
def test_points_that_do_not_ascend_from_above_zero_are_refused(rates: tuple[float, ...]) -> None:
    points = tuple(point(rate, 1.0) for rate in rates)
    with pytest.raises(ConfigError, match="ascend"):
        ReplicaCurve(points=points, saturated_per_s=3.0, required_share=0.99, idle_watts=1.0)


def test_points_beyond_saturation_are_refused() -> None:
    with pytest.raises(ConfigError, match="saturated"):
        ReplicaCurve(
            points=(point(2.0, 1.0),), saturated_per_s=1.0, required_share=0.99, idle_watts=1.0
        )


@given(
    points=st.lists(
        st.tuples(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 9_999)),
        min_size=1,
        max_size=20,
    )
)
def test_the_fit_is_scipys_to_the_bit(points: list[tuple[float, int]]) -> None:
    values, weights = np.array(points, dtype=np.float64).T
    scipys = isotonic_regression(values, weights=weights, increasing=False).x
    assert falling_fit(values, weights).tolist() == scipys.tolist()
