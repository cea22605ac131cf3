"""The time of day for policies: emulated, with days of a chosen length."""

from dataclasses import dataclass
from datetime import datetime, time
from typing import Final, Self
from zoneinfo import ZoneInfo

from emulator.errors import ConfigError
from serving.policy.day_night.schedule import checked_zone

DAY_S: Final = 86_400.0
DAY_LENGTH_S_MIN: Final = 1.0
"""Emulated seconds; a shorter day has no time for a hand-over."""

_EXPECTED = "HH:MM, with @ZONE for a time zone such as Europe/Berlin, or now"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayClock:
    """Day seconds run `86,400 / day_length_s` times as fast as emulated ones.

    `origin_s` is the Unix time at emulated time 0.
    """

    day_length_s: float
    origin_s: float

    def __post_init__(self) -> None:
        check_day_length(self.day_length_s)

    @property
    def day_s_per_emulated_s(self) -> float:
        """Seconds of the day in an emulated second."""
        return DAY_S / self.day_length_s

    def day_s(self, emulated_s: float) -> float:
        """The calendar's Unix time."""
        return self.origin_s + emulated_s * self.day_s_per_emulated_s

    def emulated_s(self, day_s: float) -> float:
        """The inverse of `day_s`."""
        return (day_s - self.origin_s) / self.day_s_per_emulated_s

    @classmethod
    def starting(cls, text: str, *, day_length_s: float, zone: str, wall_s: float) -> Self:
        """A clock that begins at `text` on the day of the Unix time `wall_s`; raises ConfigError.

        `zone` is the default of `text`.
        """
        check_day_length(day_length_s)
        return cls(day_length_s=day_length_s, origin_s=start_of(text, zone=zone, wall_s=wall_s))

    def after(self, ended_s: float) -> Self:
        """The same time of day on the first day not before `ended_s`, so that earlier observations
        stay in the past.
        """
        days = max(0, -int(-(ended_s - self.origin_s) // DAY_S))
        return type(self)(day_length_s=self.day_length_s, origin_s=self.origin_s + days * DAY_S)


def check_day_length(day_length_s: float) -> None:
    """Raise ConfigError for a day too short or infinite."""
    if not DAY_LENGTH_S_MIN <= day_length_s < float("inf"):
        expected = f"at least {DAY_LENGTH_S_MIN:g} emulated seconds"
        raise ConfigError("day_length", f"{day_length_s:g}s", expected)


def start_of(text: str, *, zone: str, wall_s: float) -> float:
    """Unix time of `HH:MM[@ZONE]` on the day of `wall_s`, or `wall_s` for `now`; raises
    ConfigError.
    """
    hours, at, named = text.partition("@")
    if hours == "now" and not at:
        return wall_s
    where = ZoneInfo(checked_zone(named if at else zone))
    try:
        moment = time.fromisoformat(hours)
    except ValueError as error:
        raise ConfigError("day_start", text, _EXPECTED) from error
    if moment.tzinfo is not None:
        raise ConfigError("day_start", text, _EXPECTED)
    today = datetime.fromtimestamp(wall_s, tz=where).date()
    return datetime.combine(today, moment, tzinfo=where).timestamp()
