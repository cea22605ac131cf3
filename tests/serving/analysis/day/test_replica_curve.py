"""A replica's curve between the rates that were simulated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from emulator.errors import ConfigError
from serving.analysis.day.replica_curve import ReplicaCurve, falling_fit
from serving.analysis.day.replica_run import TAIL
from tests.serving.analysis.day.days import CURVE, point


def test_capacity_is_where_the_line_between_two_points_meets_the_required_share() -> None:
    # From 1.0 at 2 requests/s to 0.9 at 3: 0.99 lies a tenth of the way.
    assert CURVE.capacity_per_s == pytest.approx(2.1)
    assert replace(CURVE, lasting_per_s=2.05).capacity_per_s == 2.05


def test_values_run_in_straight_lines_and_start_idle() -> None:
    at = np.array([0.0, 0.5, 1.0, 2.5, 9.0])
    assert CURVE.chip_watts(at).tolist() == [100.0, 125.0, 150.0, 225.0, 250.0]
    assert CURVE.share("both_share", at) == pytest.approx([1.0, 1.0, 1.0, 0.95, 0.0])
    assert CURVE.seconds("ttft_p99_s", at) == pytest.approx([0.1, 0.1, 0.1, 0.25, 0.3])


def test_a_share_is_kept_where_its_percentile_reaches_the_limit() -> None:
    # TTFT is q/99 of 0.1 s at 1 request/s and of 0.4 s at 3: by equal ratios of 0.2 s at 2.
    points = (
        point(1.0, 1.0),
        point(3.0, 0.4, ttft_tail_s=tuple(0.4 * q / 99 for q in TAIL)),
    )
    curve = ReplicaCurve(
        points=points,
        saturated_per_s=5.0,
        required_share=0.99,
        idle_watts=1.0,
        ttft_limit_s=0.2,
        tpot_limit_s=0.03,
        lasting_per_s=np.inf,
    )
    crossed = {q: 1 + 2 * np.log(0.2 / (0.1 * q / 99)) / np.log(4) for q in (50.0, 95.0, 99.9)}
    shares = curve.share("both_share", np.array([*crossed.values()]))
    assert shares == pytest.approx([0.5, 0.95, 0.999])
    assert curve.capacity_per_s == pytest.approx(2.0)
    assert curve.share("both_share", np.array([0.5, 1.0, 3.0])).tolist() == [1.0, 1.0, 0.4]
    assert curve.share("tpot_share", np.array([2.0, 4.0])).tolist() == [1.0, 1.0]


def test_from_the_last_point_on_requests_in_time_fall_to_none_at_saturation() -> None:
    at = np.array([3.0, 3.5, 4.0])
    assert CURVE.share("ttft_share", at) == pytest.approx([0.9, 0.45, 0.0])
    assert CURVE.share("tpot_share", at).tolist() == [1.0, 1.0, 1.0]


def test_a_curve_that_never_keeps_the_target_has_no_capacity() -> None:
    curve = ReplicaCurve(
        points=(point(1.0, 0.5),),
        saturated_per_s=2.0,
        required_share=0.99,
        idle_watts=1.0,
        lasting_per_s=np.inf,
        ttft_limit_s=None,
        tpot_limit_s=None,
    )
    assert curve.capacity_per_s == 0.0


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_shares_never_rise_with_the_rate_and_keep_their_weighted_mean(shares: list[float]) -> None:
    points = tuple(point(1.0 + n, share, judged=10 + n) for n, share in enumerate(shares))
    curve = ReplicaCurve(
        points=points,
        saturated_per_s=99.0,
        required_share=0.99,
        idle_watts=1.0,
        lasting_per_s=np.inf,
        ttft_limit_s=None,
        tpot_limit_s=None,
    )
    fitted = curve.share("both_share", np.arange(1.0, 1.0 + len(shares)))

    assert (np.diff(fitted) <= 1e-12).all()
    weights = [each.judged for each in points]
    assert np.average(fitted, weights=weights) == pytest.approx(np.average(shares, weights=weights))


@given(
    shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    ttft_limit_s=st.none() | st.floats(0.01, 1.0),
    tpot_limit_s=st.none() | st.floats(0.001, 0.1),
    times=st.lists(st.floats(0.001, 10.0), min_size=12, max_size=12),
)
def test_between_simulated_rates_no_share_rises_or_passes_theirs(
    shares: list[tuple[float, float]],
    ttft_limit_s: float | None,
    tpot_limit_s: float | None,
    times: list[float],
) -> None:
    def tail(scale: float) -> tuple[float, ...]:
        return tuple(scale * q / 99 for q in TAIL)

    points = tuple(
        point(
            1.0 + n,
            min(ttft, tpot),
            ttft_share=ttft,
            tpot_share=tpot,
            ttft_tail_s=tail(times[n]),
            tpot_tail_s=tail(times[-1 - n] / 10),
        )
        for n, (ttft, tpot) in enumerate(shares)
    )
    curve = ReplicaCurve(
        points=points,
        saturated_per_s=9.0,
        required_share=0.9,
        idle_watts=1.0,
        ttft_limit_s=ttft_limit_s,
        tpot_limit_s=tpot_limit_s,
        lasting_per_s=np.inf,
    )
    plain = replace(curve, ttft_limit_s=None, tpot_limit_s=None)
    simulated, everywhere = np.arange(1.0, 1 + len(shares)), np.linspace(0.0, 10.0, 500)
    for name in ("ttft_share", "tpot_share", "both_share"):
        found = curve.share(name, everywhere)
        assert (np.diff(found) <= 1e-12).all()
        assert curve.share(name, simulated).tolist() == plain.share(name, simulated).tolist()
    if 0.0 < curve.capacity_per_s < simulated[-1]:
        at_capacity = curve.share("both_share", np.array([curve.capacity_per_s]))
        assert at_capacity == pytest.approx(0.9)


@pytest.mark.parametrize("rates", [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0), ()])
def test_points_that_do_not_ascend_from_above_zero_are_refused(rates: tuple[float, ...]) -> None:
    points = tuple(point(rate, 1.0) for rate in rates)
    with pytest.raises(ConfigError, match="ascend"):
        ReplicaCurve(
            points=points,
            saturated_per_s=3.0,
            required_share=0.99,
            idle_watts=1.0,
            lasting_per_s=np.inf,
            ttft_limit_s=None,
            tpot_limit_s=None,
        )


def test_points_beyond_saturation_are_refused() -> None:
    with pytest.raises(ConfigError, match="saturated"):
        ReplicaCurve(
            points=(point(2.0, 1.0),),
            saturated_per_s=1.0,
            required_share=0.99,
            idle_watts=1.0,
            lasting_per_s=np.inf,
            ttft_limit_s=None,
            tpot_limit_s=None,
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
