"""Policies that follow the electricity price, or its carbon: they train when power is cheap or
clean, demand allowing.

In such hours they lend what `quantile` would; in others all groups serve, and idle ones draw less
than training. As both are known a day ahead, a group leaves only if it stays cheap for its way out
and a whole dwell.
"""

import csv
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, Self

from emulator.errors import ConfigError
from serving.policy.day_night.burst import Guard
from serving.policy.day_night.forecast import DAY_S
from serving.policy.day_night.observation import Observation
from serving.policy.day_night.options import options_text, with_options
from serving.policy.day_night.policy import Decision, Policy
from serving.policy.day_night.quantile import QuantilePolicy
from serving.policy.day_night.schedule import checked_zone, local_time

ASSUMED: Final = "assumed"
DAY_HOURS: Final = 24
WEEK_HOURS: Final = 7 * DAY_HOURS
HOUR_S: Final = 3_600.0

_PEAK_EUR_PER_MWH: Final = 88.2
_OFF_PEAK_EUR_PER_MWH: Final = 74.8
_ASSUMED_SOURCE: Final = (
    "German day-ahead means of 2024: 88.2 EUR/MWh from Monday to Friday 8:00 to 20:00, 74.8 "
    "otherwise (FfE, German electricity prices on EPEX Spot 2024); assumed: level within either"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCurve:
    """Prices by hour of the day (24) or of the week from Monday (168), in local time of a zone.

    Per MWh, in any currency, or in gCO2/kWh: policies look at their order alone. `name`: the file,
    or `assumed`. Raises ConfigError for another number of hours and prices that are not finite.
    """

    name: str
    source: str
    prices: tuple[float, ...]
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.prices) not in (DAY_HOURS, WEEK_HOURS):
            expected = f"{DAY_HOURS} hours of a day or {WEEK_HOURS} of a week from Monday"
            raise ConfigError("price", f"{self.name}, {len(self.prices)} hours", expected)
        if not all(math.isfinite(price) for price in self.prices):
            raise ConfigError("price", self.name, "finite prices")
        checked_zone(self.zone)

    def at(self, now_s: float) -> float:
        """The price at a Unix time."""
        local = local_time(now_s, self.zone)
        return self.prices[(local.weekday() * DAY_HOURS + local.hour) % len(self.prices)]

    def threshold(self, cheap: float) -> float:
        """The lowest price that at least the share `cheap` of the hours do not exceed."""
        rank = min(max(math.ceil(cheap * len(self.prices) - 1e-9), 1), len(self.prices))
        return sorted(self.prices)[rank - 1]


def assumed_curve(zone: str = "Europe/Berlin") -> PriceCurve:
    """The built-in week: one price for office hours, one for the rest."""
    prices = tuple(
        _PEAK_EUR_PER_MWH if day < 5 and 8 <= hour < 20 else _OFF_PEAK_EUR_PER_MWH
        for day in range(7)
        for hour in range(DAY_HOURS)
    )
    return PriceCurve(name=ASSUMED, source=_ASSUMED_SOURCE, prices=prices, zone=zone)


def read_curve(path: str, zone: str = "UTC", *, column: str = "price") -> PriceCurve:
    """Read a CSV file with a header and columns `hour` (0, 1, 2, ...) and `column`; raises
    ConfigError, which names the bad line.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        expected = "a CSV file that can be read"
        why = getattr(error, "strerror", None) or error
        raise ConfigError(column, f"{path} ({why})", expected) from None
    prices = []
    for number, row in enumerate(rows):
        try:
            if int(row["hour"]) != number:
                raise ValueError(row["hour"])
            prices.append(float(row[column]))
        except (KeyError, TypeError, ValueError):
            where = f"{path}, line {number + 2}"  # the head is the first
            expected = f"columns hour and {column}, here hour {number} and a number"
            raise ConfigError(column, where, expected) from None
    return PriceCurve(name=path, source=f"{path}", prices=tuple(prices), zone=zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Policy):
    """Lends what demand leaves over in the cheapest share `cheap` of the hours; raises ConfigError
    for a share outside (0, 1], and as `QuantilePolicy` does.

    `column`: of its file, beside the hour; `built_in`: whether a curve may be `assumed`.
    """

    name = "price"
    weighs_demand = True
    column: ClassVar[str] = "price"
    built_in: ClassVar[bool] = True

    curve: PriceCurve
    cheap: float = 0.5
    confidence: float = 0.985
    warm_s: float = DAY_S
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        if not 0 < self.cheap <= 1:
            raise ConfigError("cheap", self.cheap, "above 0, at most 1")
        assert self.following  # refuses what it cannot use

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `FILE[@ZONE][;cheap=0.4,...]`, where the file may be `assumed`."""
        place, _, options = text.partition(";")
        # A path may hold an @, a zone's name may not.
        name, at, zone = place.rpartition("@") if "@" in place else (place, "", "")
        name, zone = name.strip(), zone.strip()
        if not name:
            files = f"a CSV file with columns hour and {cls.column}"
            raise ConfigError(cls.name, text, f"{ASSUMED} or {files}" if cls.built_in else files)
        if name == ASSUMED and cls.built_in:
            curve = assumed_curve(checked_zone(zone)) if at else assumed_curve()
        else:
            curve = read_curve(name, checked_zone(zone) if at else "UTC", column=cls.column)
        policy: Self = with_options(cls(curve=curve), options)
        return policy

    @property
    def following(self) -> QuantilePolicy:
        """The policy of the cheap hours."""
        return QuantilePolicy(guard=self.guard, confidence=self.confidence, warm_s=self.warm_s)

    def __str__(self) -> str:
        options = options_text(self, type(self)(curve=self.curve))
        place = f"{self.name}:{self.curve.name}@{self.curve.zone}"
        return f"{place};{options}" if options else place

    def decide(self, observed: Observation) -> Decision:
        """Decide as `quantile` does when it is cheap, else call all back."""
        threshold = self.curve.threshold(self.cheap)
        price = self.curve.at(observed.now_s)
        if price > threshold:
            return Decision(
                serving_groups=observed.groups,
                reason=f"{self.column} {price:g} above {threshold:g}",
            )
        decision = self.following.decide(observed)
        if decision.serving_groups >= observed.serving_groups:
            return decision
        ahead_s = observed.drain_s + self.guard.dwell_s
        hours = range(1, math.ceil(ahead_s / HOUR_S) + 1)
        looks_s = [min(hour * HOUR_S, ahead_s) for hour in hours]
        if any(self.curve.at(observed.now_s + look_s) > threshold for look_s in looks_s):
            return Decision(
                serving_groups=observed.serving_groups,
                reason=f"{self.column} above {threshold:g} within the dwell",
            )
        return decision

    def describe(self) -> str:
        """State what it does and assumes."""
        return (
            f"{self}: as {self.following} while the {self.column} is at most "
            f"{self.curve.threshold(self.cheap):g}, else all groups serve; from: "
            f"{self.curve.source}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Carbon(Price):
    """The same by grams of CO2 per kWh, of a user's file: none is built in."""

    name = "carbon"
    column: ClassVar[str] = "gco2_per_kwh"
    built_in: ClassVar[bool] = False
