"""A system's power beside its chips: hosts, switches, cooling, conversion, season.

`provisioned_watts` and the worst day's `pue` depend on assumptions, so the system holds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from emulator.errors import ConfigError
from emulator.specs.figure import Figure, NamedFigures, figures_of


class Cooling(StrEnum):
    """LIQUID: cold plates on chips, host CPUs and switches, fans elsewhere. AIR: fans alone."""

    AIR = "air"
    LIQUID = "liquid"


class Season(StrEnum):
    """PUE follows the weather; PEAK is the design day of provisioned power."""

    PEAK = "peak"
    SUMMER = "summer"
    SPRING_AUTUMN = "spring-autumn"
    WINTER = "winter"


@dataclass(frozen=True, slots=True, kw_only=True)
class RackPowerSpec:
    """Watts beside the chips of one scale-up domain; raises ConfigError for impossible values.

    Each part draws between its idle share, with idle chips, and all its watts, with chips at
    budget.

    Attributes:
        cpu_watts: one host CPU with its memory.
        tray_watts: network cards, retimers and disks of all compute trays.
        switch_watts: all scale-up switches, on switch trays and on the compute trays' boards.
        fan_share: fans, of the watts that air carries away.
        pump_watts: coolant pumps of all racks, constant.
        conversion_efficiency: from the racks' input to their boards.
        season_overhead: each season's part of the peak's PUE - 1.
    """

    cooling: Cooling
    cpu_watts: Figure
    cpu_idle_share: Figure
    tray_watts: Figure
    tray_idle_share: Figure
    switch_watts: Figure
    switch_idle_share: Figure
    fan_share: Figure
    pump_watts: Figure
    conversion_efficiency: Figure
    season_overhead: tuple[tuple[Season, Figure], ...]

    def __post_init__(self) -> None:
        for label, figure in self.figures():
            if figure.value < 0:
                raise ConfigError(label, figure.value, "at least 0")
            if figure.value > 1 and label.endswith(("share", "efficiency", "overhead")):
                raise ConfigError(label, figure.value, "at most 1")
        if self.conversion_efficiency.value == 0:
            raise ConfigError("conversion_efficiency", 0, "above 0")
        seasons = [season for season, _ in self.season_overhead]
        if sorted(seasons) != sorted(Season):
            raise ConfigError("season_overhead", seasons, "each season once")
        if self.overhead_in(Season.PEAK).value != 1:
            raise ConfigError(
                "season_overhead",
                self.overhead_in(Season.PEAK).value,
                "1 at the peak, which the others are a part of",
            )

    def overhead_in(self, season: Season) -> Figure:
        """The part of the peak's PUE - 1 in `season`."""
        return dict(self.season_overhead)[season]

    def figures(self) -> NamedFigures:
        """Every figure by its name."""
        seasons = ((_overhead(season), figure) for season, figure in self.season_overhead)
        return (*figures_of(self), *seasons)

    def with_figures(self, figures: Mapping[str, Figure]) -> "RackPowerSpec":
        """The same with others of `figures`; raises ConfigError for impossible values."""
        seasons = tuple(
            (season, figures.get(_overhead(season), figure))
            for season, figure in self.season_overhead
        )
        others = figures.keys() & dict(figures_of(self)).keys()
        own = {name: figures[name] for name in others}
        return replace(self, season_overhead=seasons, **own)  # type: ignore[arg-type]


def _overhead(season: Season) -> str:
    return f"{season.replace('-', '_')}_overhead"
