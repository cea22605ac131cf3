"""What a plan draws and costs: at its peak, over a day, by the token."""

from dataclasses import dataclass

from emulator.model import (
    Prices,
    Season,
    SystemPower,
    SystemSpec,
    TokenCost,
    TokenRates,
    TokensPerMegawatt,
    token_cost,
    tokens_per_megawatt,
)
from serving.planning.night import Night, NightHour

WATT_HOURS_PER_MWH = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Whole machines with the replicas that serve on them, and what a replica's chips draw.

    `busy_watts` is of all chips of a replica with its share of the peak, `idle_chip_watts` of one
    chip without work. Between both, watts follow the load (assumed: a line).
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

    def chip_watts(self, *, replicas: int, load: float) -> float:
        """Of all chips, when so many replicas have `load` of their share of the peak; the rest of
        the chips idle.
        """
        idle_watts = self.idle_chip_watts * self.replica_chips
        each = idle_watts + min(load, 1.0) * (self.busy_watts - idle_watts)
        resting = self.chips - replicas * self.replica_chips
        return replicas * each + resting * self.idle_chip_watts

    def drawn_watts(self, *, replicas: int, load: float) -> float:
        """At the utility's meter."""
        each = self.chip_watts(replicas=replicas, load=load) / self.machines
        facility = SystemPower(self.system).facility_watts(
            each, chips=self.system.chips.count, season=self.season
        )
        return self.machines * facility.total_watts

    def hour_watts(self, hour: NightHour) -> float:
        """At the utility's meter in an hour of the night's account."""
        return self.drawn_watts(
            replicas=hour.replicas, load=hour.mean_share * self.replicas / hour.replicas
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Watts, tokens by the megawatt, and dollars.

    Attributes:
        provisioned_watts: the racks' budget of the machines bought, before cooling.
        peak_drawn_watts, mean_drawn_watts: at the utility's meter, in the busiest window and over
            the day.
        serving_mwh_per_day: the same as energy, chips that are free left idle.
        freed_mwh_per_day: what the freed chips' share of the racks' budget comes to while they are
            free, before cooling: the most that other work may draw there.
        rack_slowdown: how many times longer steps would take if a rack were full of these replicas
            and had to keep to its budget; 1 where it does. The simulation does not hold it back.
        per_megawatt: tokens/s/MW at the peak.
        peak_cost, day_cost: dollars of an hour and of a million tokens; None without prices.
    """

    provisioned_watts: float
    peak_drawn_watts: float
    mean_drawn_watts: float
    serving_mwh_per_day: float
    freed_mwh_per_day: float
    rack_slowdown: float
    per_megawatt: tuple[TokensPerMegawatt, ...]
    peak_cost: TokenCost | None
    day_cost: TokenCost | None


def bill_of(fleet: Fleet, night: Night, rates: TokenRates, prices: Prices | None) -> Bill:
    """The bill of a fleet that serves `rates` at its peak, and a day of that shape."""
    power = SystemPower(fleet.system)
    per_machine = fleet.system.chips.count
    peak_watts = fleet.drawn_watts(replicas=fleet.replicas, load=1.0)
    day_watt_hours = sum(fleet.hour_watts(hour) for hour in night.hours)
    mean_watts = day_watt_hours / len(night.hours)
    peak_rates = _scaled(rates, 1 / fleet.machines)
    day_rates = _scaled(rates, night.day.mean_share / fleet.machines)

    def cost(tokens: TokenRates, watts: float) -> TokenCost | None:
        if prices is None:
            return None
        of_one = token_cost(
            prices,
            tokens,
            system=fleet.system,
            chips=per_machine,
            drawn_watts=watts / fleet.machines,
        )
        return _of_machines(of_one, fleet.machines)

    return Bill(
        provisioned_watts=fleet.machines * power.provisioned_watts(per_machine),
        peak_drawn_watts=peak_watts,
        mean_drawn_watts=mean_watts,
        serving_mwh_per_day=day_watt_hours / WATT_HOURS_PER_MWH,
        freed_mwh_per_day=power.provisioned_watts(1) * night.free_chip_hours / WATT_HOURS_PER_MWH,
        rack_slowdown=_rack_slowdown(fleet, power),
        per_megawatt=tokens_per_megawatt(
            power, peak_rates, chips=per_machine, drawn_watts=peak_watts / fleet.machines
        ),
        peak_cost=cost(peak_rates, peak_watts),
        day_cost=cost(day_rates, mean_watts),
    )


def _scaled(rates: TokenRates, factor: float) -> TokenRates:
    return TokenRates(
        output_tokens_per_s=rates.output_tokens_per_s * factor,
        input_tokens_per_s=rates.input_tokens_per_s * factor,
    )


def _of_machines(cost: TokenCost, machines: int) -> TokenCost:
    """The hours of all machines; a token costs the same."""
    return TokenCost(
        machine_dollars_per_hour=machines * cost.machine_dollars_per_hour,
        energy_dollars_per_hour=machines * cost.energy_dollars_per_hour,
        dollars_per_million_output=cost.dollars_per_million_output,
        dollars_per_million_input=cost.dollars_per_million_input,
        dollars_per_million_total=cost.dollars_per_million_total,
    )


def _rack_slowdown(fleet: Fleet, power: SystemPower) -> float:
    idle_watts = fleet.idle_chip_watts
    room_watts = power.chip_cap_watts - idle_watts
    above_watts = fleet.busy_watts / fleet.replica_chips - idle_watts
    return max(1.0, above_watts / room_watts) if room_watts > 0 else 1.0
