"""Power and cost of a plan: at its peak, over a day, per token."""

from dataclasses import dataclass, replace

from emulator.power.efficiency import (
    WATTS_PER_MEGAWATT,
    PowerEfficiency,
    TokenRates,
    tokens_per_megawatt,
)
from emulator.power.system_power import PART_LABELS, SystemPower
from emulator.power.token_cost import WATTS_PER_KILOWATT, Prices, TokenCost, token_cost
from emulator.specs.rack_power import Season
from emulator.specs.system import SystemSpec
from serving.analysis.plan.night import HOURS, Night

WATT_HOURS_PER_MWH = 1e6


def megawatts(watts: float) -> str:
    """For a reader."""
    return f"{watts / WATTS_PER_MEGAWATT:,.4g} MW"


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledFleet:
    """Whole machines, the replicas that serve on them, and their chips' power.

    `busy_watts`: all chips of a replica with its share of the peak; `idle_chip_watts`: one chip.
    Between both, watts are linear in the load (assumed).
    """

    system: SystemSpec
    season: Season
    machines: int
    replicas: int
    replica_chips: int
    busy_watts: float
    idle_chip_watts: float

    @property
    def chips(self) -> int:
        """Bought."""
        return self.machines * self.system.chips.count

    @property
    def chips_in_service(self) -> int:
        """At the peak."""
        return self.replicas * self.replica_chips

    def drawn_watts(self, *, replicas: int, load: float, chips: int) -> float:
        """At the utility's meter, of `chips` and their part of the machines, of which `replicas`
        have `load` of their share of the peak and the rest idles.
        """
        idle_watts = self.idle_chip_watts * self.replica_chips
        each = idle_watts + min(load, 1.0) * (self.busy_watts - idle_watts)
        resting = chips - replicas * self.replica_chips
        mean_watts = (replicas * each + resting * self.idle_chip_watts) / chips
        return meter_watts(self.system, mean_watts, chips=chips, season=self.season)

    def peak_watts(self, chips: int) -> float:
        """Of `chips`, at the peak."""
        return self.drawn_watts(replicas=self.replicas, load=1.0, chips=chips)

    def peak_parts(self) -> dict[str, float]:
        """Watts at the meter at the peak, of all that is bought, by part."""
        serving_watts = self.replicas * self.busy_watts
        idle_watts = (self.chips - self.chips_in_service) * self.idle_chip_watts
        facility = SystemPower(self.system).facility_watts(
            (serving_watts + idle_watts) / self.chips, chips=1, season=self.season
        )
        rest = {
            PART_LABELS[name]: self.chips * watts for name, watts in facility.parts()[1:] if watts
        }
        return {"serving chips": serving_watts, "idle chips": idle_watts, **rest}

    def day_watt_hours(self, night: Night, chips: int) -> float:
        """Of `chips`, over the night's day."""
        return sum(
            self.drawn_watts(
                replicas=hour.replicas,
                load=hour.mean_share * self.replicas / hour.replicas,
                chips=chips,
            )
            for hour in night.hours
        )


def meter_watts(
    system: SystemSpec, mean_chip_watts: float, *, chips: float, season: Season
) -> float:
    """At the utility's meter: hosts, switches and cooling go by the chip, one chip's part as often
    as there are chips.
    """
    facility = SystemPower(system).facility_watts(mean_chip_watts, chips=1, season=season)
    return chips * facility.total_watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Watts, tokens per megawatt, and dollars.

    Attributes:
        provisioned_watts: the racks' budget of the machines bought, before cooling.
        peak_drawn_watts, mean_drawn_watts: at the utility's meter, in the busiest window and the
            day; `peak_parts` of the first, by part.
        serving_mwh_per_day: at the meter, freed chips left idle.
        freed_mwh_per_day: racks' budget of freed chips, before cooling: other work may draw that.
        per_megawatt: tokens/s/MW at the peak.
        peak_cost, day_cost: dollars of an hour and of a million tokens; None without prices.
        gco2_per_hour: of the day's mean watts; None without a grid.
        shared_day_cost: over the day, when other work pays for the chips that serve at no hour.
    """

    provisioned_watts: float
    peak_drawn_watts: float
    peak_parts: dict[str, float]
    mean_drawn_watts: float
    serving_mwh_per_day: float
    freed_mwh_per_day: float
    per_megawatt: tuple[PowerEfficiency, ...]
    peak_cost: TokenCost | None
    day_cost: TokenCost | None
    shared_day_cost: TokenCost | None
    gco2_per_hour: float | None


def bill_of(
    fleet: BilledFleet,
    night: Night,
    rates: TokenRates,
    prices: Prices | None,
    *,
    grid_gco2_per_kwh: float | None = None,
) -> Bill:
    """The bill of a fleet that serves `rates` at its peak, over the night's day."""
    power = SystemPower(fleet.system)
    per_machine = fleet.system.chips.count
    peak_watts = fleet.peak_watts(fleet.chips)
    day_watt_hours = fleet.day_watt_hours(night, fleet.chips)
    day_rates = scaled(rates, night.day.mean_share)
    in_service = fleet.chips_in_service
    in_service_watt_hours = fleet.day_watt_hours(night, in_service)

    return Bill(
        provisioned_watts=power.provisioned_watts(fleet.chips),
        peak_drawn_watts=peak_watts,
        peak_parts=fleet.peak_parts(),
        mean_drawn_watts=day_watt_hours / HOURS,
        serving_mwh_per_day=day_watt_hours / WATT_HOURS_PER_MWH,
        freed_mwh_per_day=power.provisioned_watts(1) * night.free_chip_hours / WATT_HOURS_PER_MWH,
        per_megawatt=tokens_per_megawatt(
            power,
            scaled(rates, 1 / fleet.machines),
            chips=per_machine,
            drawn_watts=peak_watts / fleet.machines,
        ),
        peak_cost=_cost(fleet, prices, rates, fleet.chips, peak_watts),
        day_cost=_cost(fleet, prices, day_rates, fleet.chips, day_watt_hours / HOURS),
        shared_day_cost=_cost(fleet, prices, day_rates, in_service, in_service_watt_hours / HOURS),
        gco2_per_hour=gco2_per_hour(day_watt_hours / HOURS, grid_gco2_per_kwh),
    )


def gco2_per_hour(watts: float, grid_gco2_per_kwh: float | None) -> float | None:
    """Grams of an hour's energy at the utility's meter; None without a grid."""
    return None if grid_gco2_per_kwh is None else watts / WATTS_PER_KILOWATT * grid_gco2_per_kwh


def _cost(
    fleet: BilledFleet, prices: Prices | None, rates: TokenRates, chips: int, drawn_watts: float
) -> TokenCost | None:
    return fleet_cost(fleet.system, prices, rates, chips=chips, drawn_watts=drawn_watts)


def fleet_cost(
    system: SystemSpec,
    prices: Prices | None,
    rates: TokenRates,
    *,
    chips: float,
    drawn_watts: float,
) -> TokenCost | None:
    """Token costs on `chips`, by one chip's part, so that a token's price is that of the whole."""
    if prices is None:
        return None
    one = token_cost(
        prices,
        scaled(rates, 1 / chips),
        system=system,
        chips=1,
        drawn_watts=drawn_watts / chips,
    )
    return replace(
        one,
        machine_dollars_per_hour=chips * one.machine_dollars_per_hour,
        energy_dollars_per_hour=chips * one.energy_dollars_per_hour,
    )


def scaled(rates: TokenRates, factor: float) -> TokenRates:
    """So many times the tokens."""
    return TokenRates(
        output_tokens_per_s=rates.output_tokens_per_s * factor,
        input_tokens_per_s=rates.input_tokens_per_s * factor,
    )
