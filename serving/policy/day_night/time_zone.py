"""Local wall-clock time of a Unix time, by the IANA time zone data of the machine."""

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from emulator.errors import ConfigError


def checked_zone(name: str) -> str:
    """Return the name of a zone that the machine knows; raises ConfigError for another."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        expected = "an IANA time zone such as UTC or Europe/Berlin"
        raise ConfigError(field="time zone", value=name, expected=expected) from None
    return name


def local_time(now_s: float, zone: str) -> datetime:
    """Return the wall clock of a zone at a Unix time; summer time is the zone's own affair."""
    return datetime.fromtimestamp(now_s, ZoneInfo(zone))
