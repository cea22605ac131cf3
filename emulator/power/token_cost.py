"""Dollars per million tokens, from hourly prices that the user sets.

Machines cost by the hour, idle or not; energy costs by the meter. No price is built in: they differ
by contract, and age.
"""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.power.efficiency import TokenRates
from emulator.specs.system import SystemSpec

SECONDS_PER_HOUR: Final = 3_600
MILLION: Final = 1e6
WATTS_PER_KILOWATT: Final = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A user's prices; ConfigError for a negative price, for none, or for both machine prices.

    Attributes:
        chip_hour_dollars: for one chip with its share of the system.
        system_hour_dollars: for a whole system; a part of it pays its chips' share.
        kwh_dollars: for energy at the utility's meter, unless in the hourly price.
    """

    chip_hour_dollars: float | None = None
    system_hour_dollars: float | None = None
    kwh_dollars: float | None = None

    def __post_init__(self) -> None:
        names = ("chip_hour_dollars", "system_hour_dollars", "kwh_dollars")
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(name, value, "at least 0")
        if all(getattr(self, name) is None for name in names):
            raise ConfigError("prices", "none", f"one of {', '.join(names)}")
        if self.chip_hour_dollars is not None and self.system_hour_dollars is not None:
            raise ConfigError(
                "system_hour_dollars",
                self.system_hour_dollars,
                "not both: chip_hour_dollars is set too",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Dollars of an hour, and of a million tokens when that kind alone pays for the hour.

    None for a kind without tokens.
    """

    machine_dollars_per_hour: float
    energy_dollars_per_hour: float
    dollars_per_million_output: float | None
    dollars_per_million_input: float | None
    dollars_per_million_total: float | None

    @property
    def dollars_per_hour(self) -> float:
        """Machines and energy."""
        return self.machine_dollars_per_hour + self.energy_dollars_per_hour


def token_cost(
    prices: Prices, rates: TokenRates, *, system: SystemSpec, chips: int, drawn_watts: float
) -> TokenCost:
    """Cost of the tokens of `chips` chips of `system`, which draw `drawn_watts` at the meter.

    Raises ConfigError for chips that the system lacks, or negative watts.
    """
    total = system.chips.count
    if not 1 <= chips <= total:
        raise ConfigError("chips", chips, f"1 to {total}")
    if not 0 <= drawn_watts < float("inf"):
        raise ConfigError("drawn_watts", drawn_watts, "at least 0")
    machines = (prices.chip_hour_dollars or 0.0) * chips
    machines += (prices.system_hour_dollars or 0.0) * chips / total
    energy = (prices.kwh_dollars or 0.0) * drawn_watts / WATTS_PER_KILOWATT

    def per_million(tokens_per_s: float) -> float | None:
        if tokens_per_s == 0:
            return None
        return (machines + energy) / (tokens_per_s * SECONDS_PER_HOUR) * MILLION

    return TokenCost(
        machine_dollars_per_hour=machines,
        energy_dollars_per_hour=energy,
        dollars_per_million_output=per_million(rates.output_tokens_per_s),
        dollars_per_million_input=per_million(rates.input_tokens_per_s),
        dollars_per_million_total=per_million(rates.total_tokens_per_s),
    )
