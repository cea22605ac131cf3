"""The shape of a system: how chips stand in trays and racks, and what power the whole is given.

A chip's place follows from its number: trays are filled one after the other, then racks.
"""

from dataclasses import dataclass, fields

from emulator.errors import ConfigError
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure, NamedFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """One UltraServer; hops count NeuronSwitches on the way between two chips of a tier."""

    name: str
    chip: ChipSpec
    racks: Figure
    trays_per_rack: Figure
    chips_per_tray: Figure
    switch_trays_per_rack: Figure
    chips: Figure
    cpus: Figure
    tray_hops: Figure
    backplane_hops: Figure
    cross_rack_hops: Figure
    hop_ns: Figure
    provisioned_watts: Figure
    pue: Figure

    def __post_init__(self) -> None:
        placed = self.racks.count * self.chips_per_rack
        if placed != self.chips.count:
            raise ConfigError(
                field=f"{self.name}.chips",
                value=self.chips.count,
                expected=f"racks x trays x chips per tray = {placed}",
            )
        if self.overhead_watts_per_chip.value < 0:
            raise ConfigError(
                field=f"{self.name}.provisioned_watts",
                value=self.provisioned_watts.value,
                expected="at least the chips' own budgets",
            )
        if self.pue.value < 1:
            raise ConfigError(field=f"{self.name}.pue", value=self.pue.value, expected=">= 1")

    def figures(self) -> NamedFigures:
        """Every figure of the system itself by its name, derived ones last; not its chip's."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        own = tuple((name, value) for name, value in named if isinstance(value, Figure))
        return (*own, ("overhead_watts_per_chip", self.overhead_watts_per_chip))

    @property
    def chips_per_rack(self) -> int:
        """Chips of one rack."""
        return self.trays_per_rack.count * self.chips_per_tray.count

    @property
    def overhead_watts_per_chip(self) -> Figure:
        """The share of hosts, switches, network cards and conversion in the provisioned power."""
        per_chip = self.provisioned_watts.value / self.chips.count
        budget = self.chip.budget_watts.value
        return Figure(
            value=per_chip - budget,
            unit="W",
            source=f"arithmetic: {self.provisioned_watts.value:,.0f} W / {self.chips.count} chips "
            f"- {budget:,.0f} W",
        )
