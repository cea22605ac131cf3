import numpy as np
import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.history import BUCKETS_MAX, DemandHistory


def test_pairs_become_buckets_and_a_hole_counts_as_no_demand() -> None:
    history = DemandHistory.of([(600.0, 2.0), (900.0, 3.0), (1_500.0, 5.0)], bucket_s=300.0)

    assert history.end_s == 1_500.0
    assert history.requests_per_s.tolist() == [2.0, 3.0, 0.0, 5.0]
    assert len(DemandHistory.of([], bucket_s=300.0)) == 0


def test_a_new_bucket_goes_last_and_the_oldest_is_forgotten() -> None:
    full = DemandHistory(
        end_s=300.0 * BUCKETS_MAX,
        bucket_s=300.0,
        requests_per_s=np.arange(BUCKETS_MAX, dtype=np.float64),
    )
    longer = full.then(7.0)

    assert longer.end_s == full.end_s + 300.0
    assert len(longer) == BUCKETS_MAX
    assert longer.requests_per_s[[0, -2, -1]].tolist() == [1.0, BUCKETS_MAX - 1.0, 7.0]


def test_what_is_too_old_is_forgotten_whatever_holes_follow() -> None:
    far_s = 300.0 * (BUCKETS_MAX + 1)
    history = DemandHistory.of([(300.0, 9.0), (600.0, 4.0), (far_s, 1.0)], bucket_s=300.0)

    assert len(history) == BUCKETS_MAX
    assert history.requests_per_s[[0, 1, -1]].tolist() == [4.0, 0.0, 1.0]


def test_a_day_in_two_minutes_has_another_finest_rate() -> None:
    rates = np.ones(3)
    real = DemandHistory(end_s=0.0, bucket_s=300.0, requests_per_s=rates)
    fast = DemandHistory(end_s=0.0, bucket_s=300.0, requests_per_s=rates, pace=720.0)

    assert real.finest_per_s == pytest.approx(1 / 300)
    assert fast.finest_per_s == pytest.approx(2.4)  # a bucket lasts 300 / 720 s
    assert fast.then(1.0).pace == 720.0


@pytest.mark.parametrize(
    ("bucket_s", "rates", "named"),
    [
        (0.0, [1.0], "bucket_s"),
        (300.0, [-1.0], "requests_per_s"),
        (300.0, [float("nan")], "requests_per_s"),
        (300.0, [float("inf"), 1.0], "requests_per_s"),
        (300.0, [[1.0]], "requests_per_s"),
    ],
)
def test_rates_that_cannot_be_are_refused(bucket_s: float, rates: list[float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}="):
        DemandHistory(end_s=0.0, bucket_s=bucket_s, requests_per_s=np.array(rates))


@pytest.mark.parametrize("ends", [(300.0, 300.0), (600.0, 300.0), (300.0, 700.0)])
def test_ends_that_do_not_rise_by_buckets_are_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match=r"^end_s="):
        DemandHistory.of([(end, 1.0) for end in ends], bucket_s=300.0)
