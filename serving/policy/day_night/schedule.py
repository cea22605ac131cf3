"""The policy of fixed hours: within its windows groups train, outside all serve.

Windows are wall-clock times of a zone; on nights of a clock change an hour shorter or longer.
"""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import options_text, with_options
from serving.policy.day_night.policy import Decision, Policy

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_WINDOW: Final = re.compile(
    r"(?:(?P<days>[a-z+-]+)/)?(?P<h>\d\d):(?P<m>\d\d)-(?P<end_h>\d\d):(?P<end_m>\d\d)"
)
_EXPECTED: Final = (
    "[DAYS/]HH:MM-HH:MM, more of them after commas, such as 22:00-06:00 or mon-fri/01:00-05:30"
)


def checked_zone(name: str) -> str:
    """Return the name of a known IANA zone; raises ConfigError for another."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        expected = "an IANA time zone such as UTC or Europe/Berlin"
        raise ConfigError("time zone", name, expected) from None
    return name


def local_time(now_s: float, zone: str) -> datetime:
    """The wall clock of a zone at a Unix time, with its summer time."""
    return datetime.fromtimestamp(now_s, ZoneInfo(zone))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleWindow:
    """From one minute of the day to another, past midnight when the end is not after the start.

    `days`: of its start, 0 for Monday. Raises ConfigError for minutes out of range, no length, and
    days that are missing, unknown or not in order.
    """

    start_minute: int
    end_minute: int
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)

    def __post_init__(self) -> None:
        start, end = self.start_minute, self.end_minute
        if not (0 <= start < _DAY_MINUTES and 0 <= end <= _DAY_MINUTES and start != end):
            raise ConfigError("window", self._hours, _EXPECTED)
        rising = tuple(sorted(set(self.days)))
        if not self.days or rising != self.days or set(self.days) - set(range(7)):
            raise ConfigError("days", self.days, "of 0 to 6, rising")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[DAYS/]HH:MM-HH:MM`; raises ConfigError."""
        matched = _WINDOW.fullmatch(text.strip())
        if matched is None or int(matched["m"]) > 59 or int(matched["end_m"]) > 59:
            raise ConfigError("window", text, _EXPECTED)
        return cls(
            start_minute=int(matched["h"]) * 60 + int(matched["m"]),
            end_minute=int(matched["end_h"]) * 60 + int(matched["end_m"]),
            days=_days(matched["days"]) if matched["days"] else tuple(range(7)),
        )

    def __str__(self) -> str:
        days = "+".join(DAYS[day] for day in self.days)
        return self._hours if len(self.days) == 7 else f"{days}/{self._hours}"

    @property
    def _hours(self) -> str:
        start, end = (
            f"{minute // 60:02}:{minute % 60:02}" for minute in (self.start_minute, self.end_minute)
        )
        return f"{start}-{end}"

    def holds(self, weekday: int, minute: float) -> bool:
        """Whether a minute of a weekday lies in it."""
        if self.start_minute < self.end_minute:
            return weekday in self.days and self.start_minute <= minute < self.end_minute
        started_today = weekday in self.days and minute >= self.start_minute
        return started_today or ((weekday - 1) % 7 in self.days and minute < self.end_minute)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy(Policy):
    """Lends within its windows all but `keep` groups, and never what the present load needs.

    Groups are called back in time to serve when the window ends. Raises ConfigError for no window,
    an unknown time zone, and a negative `keep`.
    """

    name = "schedule"

    windows: tuple[ScheduleWindow, ...]
    zone: str = "UTC"
    keep: int = 0
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        if not self.windows:
            raise ConfigError("schedule", "", _EXPECTED)
        if self.keep < 0:
            raise ConfigError("keep", self.keep, ">= 0 groups")
        checked_zone(self.zone)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `WINDOW[,WINDOW...][@ZONE][;keep=N,dwell=30m,...]`; raises ConfigError."""
        place, _, options = text.partition(";")
        windows, at, zone = place.partition("@")
        parsed = cls(
            windows=tuple(ScheduleWindow.parse(window) for window in windows.split(",")),
            zone=checked_zone(zone.strip()) if at else "UTC",
        )
        policy: Self = with_options(parsed, options)
        return policy

    def __str__(self) -> str:
        options = options_text(self, SchedulePolicy(windows=self.windows))
        windows = ",".join(str(window) for window in self.windows)
        return f"{self.name}:{windows}@{self.zone}" + (f";{options}" if options else "")

    def inside(self, now_s: float) -> bool:
        """Whether a Unix time lies in a window."""
        local = local_time(now_s, self.zone)
        minute = local.hour * 60 + local.minute
        return any(window.holds(local.weekday(), minute) for window in self.windows)

    def decide(self, observed: Observation) -> Decision:
        """Lend in the windows, so that all serve when one ends."""
        if self.inside(observed.now_s) and self.inside(observed.now_s + observed.restore_s):
            return self.guard.settled(
                observed, Decision(serving_groups=self.keep, reason="within the hours")
            )
        return Decision(serving_groups=observed.groups, reason="outside the hours")

    def describe(self) -> str:
        """State what it does."""
        kept = f"all but {self.keep} groups" if self.keep else "all groups that may leave"
        return (
            f"{self}: lends {kept} in these hours, never what the present load with "
            f"{self.guard.headroom:.0%} headroom needs; assumed: that demand is low in these hours"
        )


def _days(text: str) -> tuple[int, ...]:
    """Read `mon-fri`, `sat+sun`, `fri-mon`; raises ConfigError."""
    chosen: set[int] = set()
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ConfigError("days", text, f"of {', '.join(DAYS)}, such as mon-fri or sat+sun")
        start = DAYS.index(first)
        count = (DAYS.index(last) - start) % 7 if dash else 0
        chosen |= {(start + step) % 7 for step in range(count + 1)}
    return tuple(sorted(chosen))
