"""What a day leaves over."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import ConfigError
from loadgen.workloads.traffic import Traffic
from serving.analysis.plan.night import (
    DAY_S,
    HOURS,
    Day,
    day_of_trace,
    deepseek_day,
    night_of,
    read_day,
)


def day(*shares: float) -> Day:
    """Hours with these shares; the first hours of it, the rest at the peak."""
    filled = (*shares, *[1.0] * (HOURS - len(shares)))
    return Day(source="by hand", mean_shares=filled, busiest_shares=filled)


def traffic_at(arrivals: np.ndarray) -> Traffic:
    ones = np.ones(len(arrivals), dtype=np.int64)
    return Traffic(arrival_s=np.sort(arrivals), prompt_tokens=ones, output_tokens=ones)


def test_a_night_worked_out_by_hand() -> None:
    night = night_of(day(0.5, 0.26, 0.0), replicas=4, replica_chips=8, bought_chips=144)

    assert [hour.replicas for hour in night.hours[:4]] == [2, 2, 1, 4]
    assert [hour.free_chips for hour in night.hours[:4]] == [16, 16, 24, 0]
    assert night.free_chip_hours == 56
    assert night.trough_free_chips == 24
    assert night.never_used_chips == 144 - 32


def test_a_stretch_may_go_past_midnight() -> None:
    shares = [0.5] * 3 + [1.0] * 19 + [0.5] * 2
    night = night_of(day(*shares), replicas=2, replica_chips=4, bought_chips=8)

    assert night.stretch(4) == (22, 5)
    assert night.stretch(5) == (0, 0)


def test_the_recorded_day_has_the_mean_that_its_operator_published() -> None:
    found = deepseek_day()

    assert found.mean_share * 278 == pytest.approx(226.75)
    assert found.mean_shares[5] * 278 == pytest.approx(68)
    assert found.mean_shares[3] * 278 == pytest.approx((98 + 68) / 2)
    assert found.busiest_shares[3] * 278 == pytest.approx(98)
    assert found.mean_shares[12] == 1


@given(
    shares=st.lists(st.floats(0, 1), min_size=HOURS, max_size=HOURS),
    replicas=st.integers(1, 50),
    chips=st.integers(1, 16),
)
def test_an_hour_keeps_enough_replicas_and_none_too_many(
    shares: list[float], replicas: int, chips: int
) -> None:
    night = night_of(
        day(*shares), replicas=replicas, replica_chips=chips, bought_chips=replicas * chips
    )

    for share, hour in zip(shares, night.hours, strict=True):
        assert hour.replicas + 1e-6 >= share * replicas
        assert hour.replicas == 1 or (hour.replicas - 1) < share * replicas
        assert hour.free_chips == (replicas - hour.replicas) * chips


def test_a_trace_of_two_days_gives_its_own_day() -> None:
    # 60 requests an hour, but 30 in the fifth hour of both days and all 60 of the sixth in its
    # first five minutes.
    hours = []
    for hour in range(48):
        begin, count = hour * 3_600.0, 30 if hour % 24 == 4 else 60
        spread = 300.0 if hour % 24 == 5 else 3_600.0
        hours.append(begin + np.arange(count) * spread / count)
    trace = traffic_at(np.concatenate([*hours, [2 * DAY_S]]))
    found = day_of_trace(trace, window_s=300.0, peak_rate_per_s=60 / 300)

    assert found is not None
    assert found.mean_shares[4] == pytest.approx(30 / 3600 / 0.2)
    assert found.mean_shares[6] == pytest.approx(60 / 3600 / 0.2)
    assert found.busiest_shares[5] == pytest.approx(1.0)
    assert found.busiest_shares[6] == pytest.approx(5 / 60)


def test_a_trace_of_an_hour_has_no_day() -> None:
    assert day_of_trace(traffic_at(np.arange(3_600.0)), window_s=60, peak_rate_per_s=1.0) is None


def test_a_day_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    rows = [f"{hour},{100 if hour else 50}" for hour in reversed(range(HOURS))]
    path.write_text("\n".join(["hour,requests", *rows]) + "\n")

    assert read_day(path).mean_shares == (0.5, *[1.0] * 23)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line"),
        ("hour,requests\n0,1\n", "1 of 24 hours"),
        ("hour,requests\n0,1\n0,2\n", "line 3"),
        ("hour,requests\n24,1\n", "line 2"),
        ("hour,requests\n1,-1\n", "line 2"),
        ("hour,requests\n1,nan\n", "line 2"),
        ("hour,requests\nx,1\n", "line 2"),
        ("hour,requests\n" + "".join(f"{hour},0\n" for hour in range(24)), "no requests"),
    ],
)
def test_a_wrong_day_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "day.csv"
    path.write_text(text)

    with pytest.raises(ConfigError, match=why) as refusal:
        read_day(path)
    assert "\n" not in str(refusal.value)


def test_a_day_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_day(tmp_path / "none.csv")
