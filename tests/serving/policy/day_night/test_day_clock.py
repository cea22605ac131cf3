from datetime import UTC, datetime

import pytest

from emulator.errors import ConfigError
from serving.policy.day_night.day_clock import DayClock

WALL_S = datetime(2026, 1, 15, 9, 30, tzinfo=UTC).timestamp()


def starting(text: str, *, day_length_s: float = 120.0, zone: str = "UTC") -> DayClock:
    return DayClock.starting(text, day_length_s=day_length_s, zone=zone, wall_s=WALL_S)


def test_a_day_of_two_emulated_minutes_by_hand() -> None:
    clock = starting("18:00")

    assert datetime.fromtimestamp(clock.day_s(0.0), UTC) == datetime(2026, 1, 15, 18, tzinfo=UTC)
    assert datetime.fromtimestamp(clock.day_s(60.0), UTC) == datetime(2026, 1, 16, 6, tzinfo=UTC)
    assert clock.emulated_s(clock.day_s(12.5)) == pytest.approx(12.5)


def test_now_is_the_wall_s_time() -> None:
    assert starting("now", day_length_s=86_400).day_s(60.0) == WALL_S + 60


@pytest.mark.parametrize(
    ("text", "zone"), [("18:00", "Europe/Berlin"), ("18:00@Europe/Berlin", "UTC")]
)
def test_hours_are_those_of_their_zone(text: str, zone: str) -> None:
    begun = datetime.fromtimestamp(starting(text, zone=zone).origin_s, UTC)

    assert (begun.hour, begun.minute) == (17, 0)


@pytest.mark.parametrize("text", ["", "25:00", "six", "18:00+01:00", "now@UTC", "18:00@Nowhere"])
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        starting(text)


@pytest.mark.parametrize("day_length_s", [0.0, -1.0, 0.5, float("inf"), float("nan")])
def test_a_day_has_a_length(day_length_s: float) -> None:
    with pytest.raises(ConfigError, match="day_length"):
        starting("now", day_length_s=day_length_s)
