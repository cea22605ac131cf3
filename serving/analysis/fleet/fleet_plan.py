"""The file of a fleet: buildings, rows of machines, power caps, weather, failures, demand.

A TOML file in the form of `deploy/fleets/rainier.toml`. Whatever is a fact about the world has a
`source`, or the word assumed in it.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from emulator.errors import ConfigError
from emulator.power.system_power import SystemPower
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name
from serving.analysis.day.day_comparison import PEAK_SHARE_MAX

Float64s = NDArray[np.float64]

BUILDINGS_MAX: Final = 1_000
_DAY_HOURS: Final = 24
WATTS_PER_MEGAWATT: Final = 1e6


class _FleetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class FleetTraffic(_FleetTable, frozen=True, kw_only=True):
    """What the machines serve and train, each an even part of it; `peak_percent` of what they can.

    Names and texts are those of the options of `ultraserve day`.
    """

    source: str
    model: str
    slo: str
    policy: str = "demand"
    trace: str = "sample"
    days: int = 7
    first_day: int = 0
    input: str | None = None
    output: str | None = None
    lengths: str | None = None
    peak_percent: float = 70.0
    train_model: str | None = None
    train_recipe: Literal["default", "searched"] = "default"


class FailureClass(_FleetTable, frozen=True, kw_only=True):
    """What breaks: one of `per` every `mtbf_hours` of its own time; its machine is out until it is
    repaired.

    Raises ConfigError for times that are not above 0.
    """

    name: str
    per: Literal["chip", "cpu", "machine"]
    mtbf_hours: float
    repair_hours: float
    source: str
    repair_source: str

    def __post_init__(self) -> None:
        for field in ("mtbf_hours", "repair_hours"):
            value = getattr(self, field)
            if not 0 < value < float("inf"):
                raise ConfigError(f"failures.{self.name}.{field}", value, "above 0, finite")

    def machine_mtbf_hours(self, system: SystemSpec) -> float:
        """Of a whole machine."""
        parts = {"chip": system.chips.count, "cpu": system.cpus.count, "machine": 1}
        return self.mtbf_hours / parts[self.per]


class FleetWeather(_FleetTable, frozen=True, kw_only=True):
    """A `season` of the catalog, or degrees by hour of the day (or of the week) and the PUE by
    degrees, in straight lines; raises ConfigError for both or none.
    """

    source: str
    season: Season | None = None
    celsius: tuple[float, ...] = ()
    pue_by_celsius: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if (self.season is None) == (not self.celsius):
            raise ConfigError("weather", self.source, "either a season or celsius by hour")
        if bool(self.celsius) != bool(self.pue_by_celsius):
            raise ConfigError("pue_by_celsius", self.pue_by_celsius, "beside celsius")
        _check_hours("celsius", self.celsius)
        degrees = [each for each, _ in self.pue_by_celsius]
        if degrees != sorted(set(degrees)):
            raise ConfigError("pue_by_celsius", degrees, "degrees that ascend")
        if any(not 1 <= pue < float("inf") for _, pue in self.pue_by_celsius):
            raise ConfigError("pue_by_celsius", self.pue_by_celsius, "PUEs from 1 on")

    def pue(self, system: SystemSpec, *, first_hour: int, hours: int) -> Float64s:
        """Of each hour, from `first_hour` of the day on, [hours]."""
        if self.season is not None:
            return np.full(hours, SystemPower(system).pue(self.season))
        degrees, pues = np.array(self.pue_by_celsius).T  # [points] each
        found: Float64s = np.interp(_by_hour(self.celsius, first_hour, hours), degrees, pues)
        return found


class FleetRow(_FleetTable, frozen=True, kw_only=True):
    """Machines that are alike, with spares of their own, and a part of the building's power by what
    they are provisioned for.

    Attributes:
        hot_spares: of the machines, idle with weights: they take over at once.
        cold_spares: of the machines, off: they take over at the next full hour.
    """

    system: str
    machines: int
    hot_spares: int = 0
    cold_spares: int = 0

    def __post_init__(self) -> None:
        system_by_name(self.system)
        for field in ("hot_spares", "cold_spares"):
            if getattr(self, field) < 0:
                raise ConfigError(field, getattr(self, field), "at least 0")
        if self.slots < 1:
            raise ConfigError("machines", self.machines, "more than the row's spares")

    @property
    def slots(self) -> int:
        """Machines that work when none is out."""
        return self.machines - self.hot_spares - self.cold_spares


class FleetBuilding(_FleetTable, frozen=True, kw_only=True):
    """`count` buildings that are alike; `cap_mw` at the meter, always or by hour of the day (or of
    the week); without one it is what the racks are provisioned for.
    """

    name: str
    weather: str
    rows: tuple[FleetRow, ...]
    source: str
    count: int = 1
    cap_mw: float | tuple[float, ...] | None = None
    peak_percent: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= BUILDINGS_MAX:
            raise ConfigError("count", self.count, f"1 to {BUILDINGS_MAX} buildings")
        percent = self.peak_percent
        if percent is not None and not 0 < percent <= 100 * PEAK_SHARE_MAX:
            expected = f"above 0, at most {100 * PEAK_SHARE_MAX:g}"
            raise ConfigError("peak_percent", percent, expected)
        if not self.rows:
            raise ConfigError(f"buildings.{self.name}.rows", "none", "a row of machines")
        caps = self._caps_mw()
        _check_hours("cap_mw", caps)
        if any(not 0 < cap < float("inf") for cap in caps):
            raise ConfigError("cap_mw", self.cap_mw, "above 0")

    def _caps_mw(self) -> tuple[float, ...]:
        if self.cap_mw is None:
            return ()
        return self.cap_mw if isinstance(self.cap_mw, tuple) else (self.cap_mw,)

    def cap_watts(self, *, first_hour: int, hours: int) -> Float64s | None:
        """Of one building in each hour, [hours]; None without a cap."""
        caps = self._caps_mw()
        if not caps:
            return None
        return WATTS_PER_MEGAWATT * _by_hour(caps, first_hour, hours)

    def names(self) -> tuple[str, ...]:
        """Of each of them."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name} {number}" for number in range(1, self.count + 1))


class FleetPlan(_FleetTable, frozen=True, kw_only=True):
    """A whole fleet; raises ConfigError for a weather that is not there, and names used twice."""

    name: str
    source: str
    traffic: FleetTraffic
    weather: dict[str, FleetWeather]
    buildings: tuple[FleetBuilding, ...]
    failures: tuple[FailureClass, ...] = ()

    def __post_init__(self) -> None:
        if not self.buildings:
            raise ConfigError("buildings", "none", "at least one")
        for building in self.buildings:
            if building.weather not in self.weather:
                expected = f"one of {', '.join(self.weather) or 'none: the file has no weather'}"
                raise ConfigError("weather", building.weather, expected)
        names = [name for building in self.buildings for name in building.names()]
        if len(set(names)) < len(names):
            raise ConfigError("buildings", ", ".join(sorted(names)), "each name once")

    @property
    def systems(self) -> tuple[str, ...]:
        """Names of the machines' systems, each once."""
        rows = (row for building in self.buildings for row in building.rows)
        return tuple(dict.fromkeys(row.system for row in rows))

    @property
    def machines(self) -> int:
        """Of all buildings."""
        return sum(row.machines for _, _, row in self.each_row())

    def each_row(self) -> Iterator[tuple[str, FleetBuilding, FleetRow]]:
        """Every row of every single building, with the building's name, in the file's order."""
        for building in self.buildings:
            for name in building.names():
                for row in building.rows:
                    yield name, building, row


def read_fleet_plan(path: Path) -> FleetPlan:
    """Read and check; raises ConfigError that names the file and the fault."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), FleetPlan)
    except OSError as error:
        raise ConfigError("plan", path, f"a file to read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError("plan", path, "text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("plan", path, f"TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError("plan", path, f"a fleet: {error}") from error


def _check_hours(name: str, values: tuple[float, ...]) -> None:
    if not np.isfinite(values).all():
        raise ConfigError(name, values, "finite numbers")
    if len(values) > 1 and len(values) % _DAY_HOURS:
        raise ConfigError(name, f"{len(values)} values", "one, 24, or a multiple of 24, by hour")


def _by_hour(values: tuple[float, ...], first_hour: int, hours: int) -> Float64s:
    """Repeated over the hours, the first value at midnight, of a week's on Monday."""
    by_hour = np.array(values, dtype=np.float64)
    found: Float64s = by_hour[(first_hour + np.arange(hours)) % len(values)]
    return found
