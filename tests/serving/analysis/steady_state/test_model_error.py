from math import exp, log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.specs.shipped_fits import PredictionInterval, shipped_fits
from serving.analysis.steady_state.model_error import (
    error_in_words,
    error_of,
    in_range,
    model_error,
    plain_error,
    plain_ranges,
    range_column,
)

HALF_TO_DOUBLE = PredictionInterval(least=0.5, most=2.0)
INTERVALS = st.builds(
    PredictionInterval,
    least=st.floats(min_value=0.1, max_value=1.0),
    most=st.floats(min_value=1.0, max_value=10.0),
)


def test_a_range_is_the_prediction_times_the_measured_ratios() -> None:
    # Of 12 ms, four of five were between 0.5 and 2 times it.
    assert HALF_TO_DOUBLE.around(12.0) == (6.0, 24.0)
    assert in_range(HALF_TO_DOUBLE, 12e6, scale=1e6) == " (80 %: 6 to 24)"


def test_a_roofline_has_no_range() -> None:
    assert model_error("roofline") == {}
    assert in_range(None, 12.0) == ""
    assert range_column(None, float) == []
    assert plain_ranges({"tpot_ns": None}, {"tpot_ns": 5.0}) == {}
    assert "none is a prediction" in error_in_words({})


def test_a_users_rate_is_one_over_tpot_and_so_is_its_range() -> None:
    error = model_error("fitted")
    tpot = shipped_fits().intervals["tpot"]

    slow, fast = tpot.around(20.0)  # ms

    assert error["tokens_per_s_per_user"].around(1 / 20.0) == pytest.approx((1 / fast, 1 / slow))


def test_errors_of_two_machines_add_in_logarithms() -> None:
    # ln 2 on both sides of both: sqrt(2) ln 2 of the ratio.
    wide = exp(sqrt(2) * log(2))

    assert HALF_TO_DOUBLE.of_ratio.around(1.0) == pytest.approx((1 / wide, wide))


@given(INTERVALS)
def test_a_ratio_is_less_certain_than_each_of_its_parts(interval: PredictionInterval) -> None:
    ratio = interval.of_ratio

    assert ratio.most >= max(interval.most, 1 / interval.least) * (1 - 1e-12)
    assert ratio.least * ratio.most == pytest.approx(1)
    assert ratio.most <= interval.most / interval.least * (1 + 1e-12)


@given(INTERVALS)
def test_the_inverse_of_the_inverse_is_the_interval(interval: PredictionInterval) -> None:
    twice = interval.inverse.inverse

    assert (twice.least, twice.most) == pytest.approx((interval.least, interval.most))


def test_plain_data_holds_the_whole_error() -> None:
    error = model_error("fitted")

    assert error_of(plain_error(error)) == error
