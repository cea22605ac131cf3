import math

import pytest

from loadgen.records.estimate import Estimate
from loadgen.records.sweep_record import PointFigures, SaturationFound, SweepPoint
from loadgen.sweeps.knee import find_knee


def point(load: float, rate: float, e2e_ms: float, half_ms: float | None = None) -> SweepPoint:
    ends = {} if half_ms is None else {"low": e2e_ms - half_ms, "high": e2e_ms + half_ms}
    return SweepPoint(
        load=load,
        stage="grid",
        results="",
        seed=0,
        requests=100,
        figures=PointFigures(
            requests_per_s=Estimate(value=rate), e2e_mean_ms=Estimate(value=e2e_ms, **ends)
        ),
        saturation=SaturationFound(over=False, words=""),
    )


def test_by_hand() -> None:
    # 10/s at 100 ms: 100; 20/s at 125 ms: 160; 30/s at 250 ms: 120.
    knee = find_knee([point(10, 10, 100), point(20, 20, 125), point(30, 30, 250)])

    assert knee is not None
    assert (knee.load, knee.requests_per_s, knee.e2e_mean_ms) == (20, 20, 125)
    assert knee.power == pytest.approx(160)
    assert (knee.low, knee.high, knee.at_edge) == (20, 20, False)


def test_of_m_m_1_it_is_half_of_the_capacity() -> None:
    capacity = 100.0
    points = [point(load, load, 1e3 / (capacity - load)) for load in range(2, 100, 2)]
    knee = find_knee(points)

    assert knee is not None
    assert knee.load == 50


def test_of_m_d_1_it_is_2_less_the_root_of_2() -> None:
    points = [
        point(load, load, 10 * (1 + load / 100 / (2 * (1 - load / 100))))  # Pollaczek-Khinchine
        for load in [tenth / 10 for tenth in range(10, 990)]
    ]
    knee = find_knee(points)

    assert knee is not None
    assert knee.load == pytest.approx(100 * (2 - math.sqrt(2)), abs=0.1)


def test_of_a_closed_loop_without_chance_it_is_where_the_bottleneck_is_just_busy() -> None:
    # Replies take 200 ms, and at most 40 a second end: 8 in flight.
    points = [
        point(wide, min(wide / 0.2, 40), max(200.0, wide / 40 * 1e3)) for wide in range(1, 33)
    ]
    knee = find_knee(points)

    assert knee is not None
    assert knee.load == 8


def test_loads_that_noise_does_not_tell_apart_are_its_interval() -> None:
    # Powers 100, 160, 163, 90; with 10 ms either way the middle two overlap, the outer ones do not.
    points = [
        point(10, 10, 100, 10),
        point(20, 20, 125, 10),
        point(26, 26, 160, 10),
        point(30, 30, 333, 10),
    ]
    knee = find_knee(points)

    assert knee is not None
    assert (knee.load, knee.low, knee.high) == (26, 20, 26)


def test_at_the_edge_of_what_was_tried_it_says_so() -> None:
    knee = find_knee([point(10, 10, 100), point(20, 20, 110)])

    assert knee is not None
    assert (knee.load, knee.at_edge) == (20, True)


def test_runs_at_one_load_count_as_their_mean() -> None:
    knee = find_knee(
        [point(10, 10, 100, 3), point(20, 20, 120, 3), point(20, 20, 130, 4), point(30, 30, 400, 3)]
    )

    assert knee is not None
    assert (knee.load, knee.e2e_mean_ms) == (20, 125)


def test_one_load_has_no_knee() -> None:
    assert find_knee([point(10, 10, 100)]) is None
    assert find_knee([]) is None
