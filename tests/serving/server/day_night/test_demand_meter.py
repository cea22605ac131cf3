"""Arrivals become buckets, whenever they are read."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policy.day_night.day_clock import DayClock
from serving.policy.day_night.demand_meter import BUCKET_S, Arrivals, DemandMeter
from serving.server.day_night.demand_file import DemandFile

# A bucket of five minutes of the day is an emulated second.
CLOCK = DayClock(day_length_s=86_400 / BUCKET_S, origin_s=7 * BUCKET_S)


def read(meter: DemandMeter, *readings: tuple[float, int]) -> None:
    for emulated_s, requests in readings:
        meter.read(Arrivals(emulated_s=emulated_s, requests=requests))


def test_two_buckets_by_hand() -> None:
    meter = DemandMeter(CLOCK)
    read(meter, (0.0, 0), (0.5, 30), (1.5, 50), (1.6, 50), (2.0, 90))

    # At 1.0 s 40 requests have come: 30, and half of the 20 until 1.5 s.
    assert meter.history.requests_per_s.tolist() == pytest.approx([40.0, 50.0])
    assert meter.history.end_s == 9 * BUCKET_S
    assert meter.load_per_s == pytest.approx((90 - 30) / (2.0 - 0.5))


def test_a_request_in_a_bucket_is_not_a_rate() -> None:
    meter = DemandMeter(CLOCK)
    read(meter, (0.0, 0), (2.0, 1), (2.5, 1), (3.5, 2), (4.0, 3))
    assert meter.load_per_s == pytest.approx(3 / 4.0)

    read(meter, (5.0, 11), (6.0, 16))
    assert meter.load_per_s == pytest.approx((16 - 3) / (6.0 - 4.0))  # since ten have come


def test_an_hour_with_few_requests_is_long_enough() -> None:
    meter = DemandMeter(CLOCK)
    read(meter, (0.0, 0), (1.0, 4), (13.0, 5), (14.0, 5))

    assert meter.load_per_s == pytest.approx((5 - 4) / (14.0 - 1.0))


def test_what_was_seen_before_a_restart_is_known_after_it(tmp_path: Path) -> None:
    meter, file = DemandMeter(CLOCK), DemandFile(tmp_path)
    for emulated_s, requests in ((0.0, 0), (3.0, 30)):
        file.append(meter.read(Arrivals(emulated_s=emulated_s, requests=requests)))
    with (tmp_path / "demand.jsonl").open("ab") as lines:
        lines.write(b"[3300.0, ")  # killed while it wrote

    known = DemandFile(tmp_path)
    assert known.end_s == 10 * BUCKET_S
    again = DemandMeter(CLOCK.after(known.end_s), known.buckets)
    assert again.history.requests_per_s.tolist() == [10.0] * 3
    assert len((tmp_path / "demand.jsonl").read_bytes().splitlines()) == 3


def test_a_clock_goes_on_at_the_same_time_of_the_next_day() -> None:
    clock = DayClock(day_length_s=100.0, origin_s=1000.0)

    assert clock.after(0.0) == clock
    assert clock.after(1000.0) == clock
    assert clock.after(1001.0).origin_s == 1000.0 + 86_400
    assert clock.after(1000.0 + 86_400.0).origin_s == 1000.0 + 86_400


def test_an_engine_that_says_nothing_new_changes_nothing() -> None:
    meter = DemandMeter(CLOCK)
    read(meter, (0.4, 2), (0.4, 2), (0.3, 2))

    assert (len(meter.history), meter.load_per_s) == (0, 0.0)


@given(gaps=st.lists(st.tuples(st.integers(1, 192), st.integers(0, 50)), min_size=1, max_size=30))
def test_buckets_are_what_a_straight_line_between_readings_gives(
    gaps: list[tuple[int, int]],
) -> None:
    meter = DemandMeter(CLOCK)
    times, requests = [0.0], [0]
    for gap, more in gaps:
        times.append(times[-1] + gap / 64)  # exact, so that ends are met exactly
        requests.append(requests[-1] + more)
    read(meter, *zip(times, requests, strict=True))

    ends = np.arange(int(times[-1]) + 1)  # a bucket is a second
    assert meter.history.requests_per_s == pytest.approx(np.diff(np.interp(ends, times, requests)))
