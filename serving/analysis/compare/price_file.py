"""Prices of systems and of energy, from a TOML file of the user's; each with its source.

No price is built in. The form is that of `deploy/prices/example.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, Final

from emulator.errors import ConfigError
from emulator.power.token_cost import Prices
from emulator.specs.figure import Figure
from emulator.specs.systems import SYSTEMS


class PriceTerm(StrEnum):
    """On which terms machines are had."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"


_HOURS: Final = ("hour_dollars", "chip_hour_dollars")
_ENERGY_UNITS: Final = {"kwh_dollars": "$/kWh", "grid_gco2_per_kwh": "gCO2/kWh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """A file's prices; `machine_hours`: dollars of a machine's hour by system and term.

    `kwh_dollars` and `grid_gco2_per_kwh` hold at the utility's meter; None where not given.
    """

    path: Path
    machine_hours: Mapping[tuple[str, PriceTerm], Figure]
    kwh_dollars: Figure | None = None
    grid_gco2_per_kwh: Figure | None = None

    def prices_of(self, system: str, term: PriceTerm, *, units: int = 1) -> Prices | None:
        """By the hour of so many of a catalog system; None where it has no price on these terms."""
        hour = self.machine_hours.get((system, term))
        if hour is None:
            return None
        kwh = self.kwh_dollars
        return Prices(
            system_hour_dollars=units * hour.value, kwh_dollars=None if kwh is None else kwh.value
        )

    def required_prices_of(self, system: str, term: PriceTerm) -> Prices:
        """The same; raises ConfigError instead of None."""
        found = self.prices_of(system, term)
        if found is None:
            priced = ", ".join(name for name, of in self.machine_hours if of is term) or "none"
            expected = f"a price of {system} for {term}; it has those of {priced}"
            raise ConfigError("prices", self.path, expected)
        return found


def read_price_file(path: Path) -> PriceFile:
    """Read and check; raises ConfigError that names the file, the entry and the fault."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("prices", path, f"a file to read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError("prices", path, "text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("prices", path, f"TOML: {error}") from error
    return _PriceReader(path).prices(data)


@dataclass(frozen=True, slots=True)
class _PriceReader:
    """Checks a file's entries; `path` is named in each refusal."""

    path: Path

    def prices(self, data: dict[str, Any]) -> PriceFile:
        self._only(data, "", ("energy", "systems"))
        energy = self._table(data, "energy")
        self._only(energy, "energy.", tuple(_ENERGY_UNITS))
        figures = {
            name: self._energy(f"energy.{name}", energy[name], unit)
            for name, unit in _ENERGY_UNITS.items()
            if name in energy
        }
        machine_hours = {}
        for name, terms in self._table(data, "systems").items():
            place = f"systems.{name}"
            if name not in SYSTEMS:
                raise self._refuse(place, f"a system of the catalog: {', '.join(SYSTEMS)}")
            for term, entry in self._dict(place, terms).items():
                if term not in [*PriceTerm]:
                    raise self._refuse(f"{place}.{term}", f"one of {', '.join(PriceTerm)}")
                machine_hours[name, PriceTerm(term)] = self._hour(f"{place}.{term}", name, entry)
        if not machine_hours and not figures:
            raise self._refuse("it", "a price: it has none")
        return PriceFile(path=self.path, machine_hours=machine_hours, **figures)

    def _energy(self, place: str, entry: Any, unit: str) -> Figure:
        entry = self._dict(place, entry)
        self._only(entry, f"{place}.", ("value", "source"))
        return Figure(self._number(place, entry, "value"), unit, self._source(place, entry))

    def _hour(self, place: str, name: str, entry: Any) -> Figure:
        entry = self._dict(place, entry)
        self._only(entry, f"{place}.", (*_HOURS, "source"))
        given = [each for each in _HOURS if each in entry]
        if len(given) != 1:
            raise self._refuse(place, f"one of {' and '.join(_HOURS)}")
        value, source = self._number(place, entry, given[0]), self._source(place, entry)
        if given[0] == "hour_dollars":
            return Figure(value, "$/h", source)
        chips = SYSTEMS[name].chips.count
        return Figure(chips * value, "$/h", f"arithmetic: {chips} x {value:g} ({source})")

    def _number(self, place: str, entry: dict[str, Any], name: str) -> float:
        value = entry.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refuse(f"{place}.{name}", "a number from 0 on")
        if not isfinite(value) or value < 0:
            raise self._refuse(f"{place}.{name}", "a number from 0 on")
        return float(value)

    def _source(self, place: str, entry: dict[str, Any]) -> str:
        source = entry.get("source")
        if not isinstance(source, str) or not source.strip():
            raise self._refuse(f"{place}.source", "where the price comes from, or assumed")
        return source

    def _table(self, data: dict[str, Any], name: str) -> dict[str, Any]:
        return self._dict(name, data.get(name, {}))

    def _dict(self, place: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._refuse(place, "a table")
        return value

    def _only(self, table: dict[str, Any], place: str, names: tuple[str, ...]) -> None:
        for name in table:
            if name not in names:
                raise self._refuse(f"{place}{name}", f"one of {', '.join(names)}")

    def _refuse(self, place: str, expected: str) -> ConfigError:
        return ConfigError("prices", self.path, f"{place} to be {expected}")
