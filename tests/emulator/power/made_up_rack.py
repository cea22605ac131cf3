"""A rack power of round numbers, on the NL72x2's shape: 144 chips of 200 to 1,000 W, 36 CPUs."""

from dataclasses import replace

from emulator.power.system_power import FacilityWatts
from emulator.specs.figure import Figure
from emulator.specs.rack_power import Cooling, RackPowerSpec, Season
from emulator.specs.system import SystemSpec
from emulator.specs.systems import system_by_name


def a_figure(value: float, unit: str = "W") -> Figure:
    return Figure(value=value, unit=unit, source="a test")


ROUND = RackPowerSpec(
    cooling=Cooling.LIQUID,
    cpu_watts=a_figure(100),
    cpu_idle_share=a_figure(0.5),
    tray_watts=a_figure(7_200),
    tray_idle_share=a_figure(0.5),
    switch_watts=a_figure(14_400),
    switch_idle_share=a_figure(1),
    fan_share=a_figure(0.1),
    pump_watts=a_figure(1_440),
    conversion_efficiency=a_figure(0.8),
    season_overhead=tuple(zip(Season, map(a_figure, (1, 0.5, 0.25, 0)), strict=True)),
)


def over_budget(facility: FacilityWatts) -> bool:
    """Whether the racks draw more than provisioned, beyond rounding."""
    return facility.it_watts > facility.provisioned_watts * (1 + 1e-9)


def round_system(
    power: RackPowerSpec | None = ROUND, provisioned_watts: float = 144 * 2_000
) -> SystemSpec:
    """The NL72x2 with that power and budget, and PUE 1.5."""
    return replace(
        system_by_name("trn3-nl72x2"),
        power=power,
        provisioned_watts=a_figure(provisioned_watts),
        pue=a_figure(1.5),
    )
