import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from serving.policy.day_night.forecast import DAY_S, forecast_peak, sliding_max, upper_quantile
from serving.policy.day_night.history import F64, DemandHistory

HOUR_S = 3_600.0


def hourly(rates: list[float] | F64) -> DemandHistory:
    array = np.array(rates, dtype=np.float64)
    return DemandHistory(end_s=HOUR_S * len(array), bucket_s=HOUR_S, requests_per_s=array)


def days(count: int, *, seed: int = 0, noise: float = 0.0, bucket_s: float = 300.0) -> F64:
    """A night of 10/s, a day of 50/s, between them half a day's sine: [buckets]."""
    buckets = round(count * DAY_S / bucket_s)
    time = np.arange(buckets) * bucket_s / DAY_S
    rates: F64 = 30.0 - 20.0 * np.cos(2 * np.pi * time)
    rates *= np.exp(noise * np.random.default_rng(seed).standard_normal(buckets))
    return rates


def fives(rates: F64) -> DemandHistory:
    return DemandHistory(end_s=300.0 * len(rates), bucket_s=300.0, requests_per_s=rates)


def test_a_level_that_never_changed_is_foretold_exactly() -> None:
    foretold = forecast_peak(hourly([7.0] * 40), window_s=2 * HOUR_S, confidence=0.95)

    assert foretold.expected_per_s == pytest.approx(7.0, rel=1e-12)
    assert foretold.high_per_s == pytest.approx(7.0, rel=1e-12)


def test_the_morning_of_yesterday_is_foretold_at_todays_level() -> None:
    # Yesterday the eighth hour doubled the seventh; today the night had twice the demand.
    day = [10.0] * 7 + [20.0] * 17
    today = [2 * rate for rate in day[:7]]
    foretold = forecast_peak(hourly(day + day + day + today), window_s=HOUR_S, confidence=0.9)

    level, yesterday, last_week = foretold.weights
    assert last_week == 0
    assert yesterday > 0.5 > level
    # Twice the level by yesterday, once by the level itself, weighed between their logarithms.
    assert foretold.expected_per_s == pytest.approx(20.0 * 2.0**yesterday, rel=1e-4)


def test_a_week_ago_counts_once_a_week_is_known() -> None:
    week = np.concatenate([days(5), np.full(2 * 288, 12.0)])
    told = np.concatenate([week, week, week[: 5 * 288 + 100]])  # a quiet day, last one a busy one
    foretold = forecast_peak(fives(told), window_s=4 * HOUR_S, confidence=0.95)

    assert foretold.weights[2] > 0.9
    assert foretold.expected_per_s == pytest.approx(12.0, rel=0.05)


def test_a_time_of_day_that_often_surprises_keeps_more_room() -> None:
    rates = np.full(6 * 288, 10.0)
    for day in (1, 3):  # every other day, half an hour from eight o'clock on
        rates[day * 288 + 96 : day * 288 + 102] = 40.0
    before_eight = forecast_peak(fives(rates[: 5 * 288 + 95]), window_s=600.0, confidence=0.95)
    evening = forecast_peak(fives(rates[: 5 * 288 + 240]), window_s=600.0, confidence=0.95)

    assert before_eight.high_per_s > 2 * evening.high_per_s
    assert evening.high_per_s < 15.0


def test_the_level_is_that_of_a_quarter_of_an_hour() -> None:
    rates = np.full(400, 10.0)
    rates[-1] = 40.0
    foretold = forecast_peak(fives(rates), window_s=300.0, confidence=0.5)

    assert foretold.expected_per_s == pytest.approx(20.0, rel=1e-6)


def test_the_quantile_is_the_least_error_that_enough_weight_stays_at_or_below() -> None:
    errors = np.array([5.0, 1.0, 4.0, 2.0, 3.0])

    shares = (0.01, 0.2, 0.21, 0.8, 0.81, 0.99)
    for alike in (np.ones(5), np.zeros(5)):
        assert [upper_quantile(errors, alike, share) for share in shares] == [1, 1, 2, 4, 5, 5]
    heavy = np.array([6.0, 1.0, 1.0, 1.0, 1.0])
    assert [upper_quantile(errors, heavy, share) for share in shares] == [1, 2, 3, 5, 5, 5]


def test_without_enough_past_nothing_is_promised() -> None:
    for count in (0, 1, 12):
        few = forecast_peak(hourly([5.0] * count), window_s=HOUR_S, confidence=0.9)
        assert few.high_per_s == math.inf
        assert few.errors < 12
    enough = forecast_peak(hourly([5.0] * 13), window_s=HOUR_S, confidence=0.9)
    assert enough.high_per_s == pytest.approx(5.0)


def test_demand_that_stopped_is_foretold_as_none() -> None:
    foretold = forecast_peak(hourly([0.0] * 60), window_s=HOUR_S, confidence=0.9)

    assert foretold.high_per_s == pytest.approx(0.0, abs=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("confidence", [0.9, 0.98])
def test_what_is_foretold_covers_about_the_stated_share_of_requests(confidence: float) -> None:
    rates = days(6, seed=3, noise=0.05)
    late = came = 0.0
    before = math.inf
    for end in range(2 * 288, len(rates)):
        told = forecast_peak(fives(rates[:end]), window_s=600.0, confidence=confidence)
        # Of both windows that hold the bucket, the last look's and this one's.
        late += rates[end] * (rates[end] > max(before, told.high_per_s))
        came += rates[end]
        before = told.high_per_s
    # A high bucket by itself spoils two windows and is late once; several in a row are late each.
    assert (1 - confidence) / 20 < late / came < 2 * (1 - confidence)


def test_bursts_that_come_and_go_do_not_multiply() -> None:
    """Two levels: at the higher one no more is foretold, however steep the way there was."""
    rates = np.repeat(np.random.default_rng(4).choice([10.0, 50.0], 192), 3)
    for end in range(len(rates) - 60, len(rates)):
        told = forecast_peak(fives(rates[:end]), window_s=600.0, confidence=0.99)
        assert told.high_per_s <= 50.0 + 1e-9
    # What has passed it may grow on.
    passed = np.append(rates, [80.0] * 3)
    assert forecast_peak(fives(passed), window_s=600.0, confidence=0.99).high_per_s >= 80.0


def test_the_peak_errs_by_few_percent_where_days_are_alike() -> None:
    rates = days(5, seed=1, noise=0.03)
    errors = []
    for end in range(3 * 288, len(rates) - 12, 11):
        told = forecast_peak(fives(rates[:end]), window_s=HOUR_S, confidence=0.9)
        errors.append(abs(told.expected_per_s / rates[end : end + 12].max() - 1))

    assert np.mean(errors) < 0.05


@pytest.mark.parametrize(
    ("window_s", "confidence", "named"),
    [(0.0, 0.9, "window_s"), (DAY_S, 0.9, "window_s"), (60.0, 0.0, "confidence")],
)
def test_what_cannot_be_foretold_is_refused(window_s: float, confidence: float, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}="):
        forecast_peak(hourly([1.0]), window_s=window_s, confidence=confidence)


@given(
    rates=st.lists(st.floats(0, 100), min_size=1, max_size=60),
    window=st.integers(1, 60),
)
def test_the_sliding_maximum_is_the_maximum_of_every_slice(rates: list[float], window: int) -> None:
    if window > len(rates):
        return
    array = np.array(rates)
    slow = [max(rates[start : start + window]) for start in range(len(rates) - window + 1)]

    assert sliding_max(array, window).tolist() == slow


@given(
    rates=st.lists(st.floats(0, 1e4), min_size=30, max_size=120),
    confidence=st.floats(0.5, 0.98),
    scale=st.floats(0.5, 20),
)
def test_more_confidence_foretells_no_less_and_the_unit_of_rates_does_not_matter(
    rates: list[float], confidence: float, scale: float
) -> None:
    history = hourly(rates)
    told = forecast_peak(history, window_s=HOUR_S, confidence=confidence)
    surer = forecast_peak(history, window_s=HOUR_S, confidence=confidence + 0.01)

    # What is usual at more confidence may be above the last rate, and is then enough.
    assert surer.high_per_s >= min(told.high_per_s, rates[-1] - 3 * history.finest_per_s)
    if rates[-1] <= np.median(rates):
        assert surer.high_per_s >= told.high_per_s
    assert told.expected_per_s >= 0
    assert sum(told.weights) == pytest.approx(1.0)
    # The same shape in other units: the finest rate scales along with the pace.
    scaled = DemandHistory(
        end_s=history.end_s,
        bucket_s=HOUR_S,
        requests_per_s=history.requests_per_s * scale,
        pace=scale,
    )
    high = forecast_peak(scaled, window_s=HOUR_S, confidence=confidence).high_per_s
    assert high == pytest.approx(told.high_per_s * scale, rel=1e-6, abs=1e-9)
