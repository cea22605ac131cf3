"""A system's layout of trays and racks, and its power.

Chips are numbered by tray, then rack, then unit of a cluster. In a torus the chips of a tray fill
its first dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final

from emulator.errors import ConfigError
from emulator.specs.assumptions import AssumptionSet, apply_assumption
from emulator.specs.chip import ChipSpec
from emulator.specs.figure import Figure, NamedFigures, figures_of
from emulator.specs.rack_power import RackPowerSpec


class Topology(StrEnum):
    """SWITCHED: switches join the chips of a tier. MESH: a link for every two chips of a tray.
    TORUS: links to both neighbours in each dimension.
    """

    SWITCHED = "switched"
    MESH = "mesh"
    TORUS = "torus"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """One scale-up domain, or several joined by network cards.

    Hops count switches, or direct links, between two chips of a tier.

    Attributes:
        torus: chips in each dimension, those inside a tray first; empty without a torus.
        switch_generation: the switches, in words; empty without.
        units: scale-up domains, joined by the chips' network cards.
        scale_out_start_ns: from a send over the network cards to its first byte's arrival.
        all_in_watts_per_chip: InferenceX's utility power of this machine.
        variants: the system's own switches (assumption sets).
    """

    name: str
    chip: ChipSpec
    topology: Topology = Topology.SWITCHED
    torus: tuple[int, ...] = ()
    switch_generation: str = ""
    units: int = 1
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
    scale_out_start_ns: Figure | None = None
    provisioned_watts: Figure
    pue: Figure
    power: RackPowerSpec | None = None
    all_in_watts_per_chip: Figure | None = None
    variants: tuple[AssumptionSet, ...] = ()

    def __hash__(self) -> int:
        """Of its name: it is in keys of caches, and has many figures."""
        return hash(self.name)

    def __post_init__(self) -> None:
        placed = self.units * self.racks.count * self.chips_per_rack
        if placed != self.chips.count:
            raise ConfigError(
                f"{self.name}.chips",
                self.chips.count,
                f"units x racks x trays x chips per tray = {placed}",
            )
        if self.torus and prod(self.torus) * self.units != self.chips.count:
            raise ConfigError(f"{self.name}.torus", self.torus, f"{self.chips.count} chips")
        if (self.topology is Topology.TORUS) != bool(self.torus):
            raise ConfigError(f"{self.name}.torus", self.torus, "dimensions, for a torus")
        if self.overhead_watts_per_chip.value < 0:
            raise ConfigError(
                f"{self.name}.provisioned_watts",
                self.provisioned_watts.value,
                "at least the chips' own budgets",
            )
        if self.pue.value < 1:
            raise ConfigError(f"{self.name}.pue", self.pue.value, ">= 1")

    def figures(self) -> NamedFigures:
        """Every figure of the system itself by its name, derived ones last; without its chip's."""
        power = self.power.figures() if self.power else ()
        overhead = ("overhead_watts_per_chip", self.overhead_watts_per_chip)
        return (*figures_of(self), *power, overhead, *self.totals())

    def own_figures(self) -> NamedFigures:
        """Those that are not derived, with those of its power and its chip."""
        power = self.power.figures() if self.power else ()
        return (*figures_of(self), *power, *self.chip.own_figures())

    def with_figures(self, figures: Mapping[str, Figure]) -> "SystemSpec":
        """The system with other ones of `own_figures`; raises ConfigError for impossible values.

        Totals follow; the provisioned power is a figure of its own and stays.
        """

        def among(known: NamedFigures) -> dict[str, Figure]:
            return {name: figures[name] for name, _ in known if name in figures}

        return replace(
            self,
            chip=self.chip.with_figures(among(self.chip.own_figures())),
            power=self.power and self.power.with_figures(among(self.power.figures())),
            **among(figures_of(self)),  # type: ignore[arg-type]
        )

    @property
    def assumption_sets(self) -> tuple[AssumptionSet, ...]:
        """Its own switches and its chip's."""
        return (*self.variants, *self.chip.switches)

    def totals(self) -> NamedFigures:
        """Totals of all chips: HBM, and the dense rates of their engines."""
        chips, chip = self.chips.count, self.chip
        parts = {
            "hbm_bytes": Figure(chip.hbm_bytes, "bytes", "the chip's"),
            "hbm_bytes_per_s": chip.hbm_bytes_per_s,
            "bf16_flops_per_s": chip.tensor_bf16_flops_per_s,
            "fp8_flops_per_s": chip.tensor_fp8_flops_per_s,
            "fp4_flops_per_s": chip.tensor_fp4_flops_per_s,
        }
        return tuple(
            (
                f"total_{label}",
                Figure(
                    chips * part.value, part.unit, f"arithmetic: {chips} x {chip.name}'s {label}"
                ),
            )
            for label, part in parts.items()
            if part is not None
        )

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
            per_chip - budget,
            "W",
            f"arithmetic: {self.provisioned_watts.value:,.0f} W / {self.chips.count} chips "
            f"- {budget:,.0f} W",
        )

    def turned_switches(self) -> tuple[str, ...]:
        """What differs from the catalog, in the words of `with_assumptions`: the assumptions other
        than the defaults, then the figures that were set.
        """
        found = []
        for spec, switches in ((self, self.variants), (self.chip, self.chip.switches)):
            for switch in switches:
                assumption = switch.assumption_of(spec)
                if assumption is not None and assumption is not switch.assumptions[0]:
                    found.append(f"{switch.name}={assumption.name}")
        found += [f"{name}={figure.set_to}" for name, figure in self.own_figures() if figure.is_set]
        return tuple(found)

    def turned_in_words(self) -> tuple[str, ...]:
        """A line of `turned_switches` for a report; none for the catalog's machine."""
        turned = self.turned_switches()
        return (f"{self.name} with {', '.join(turned)}",) if turned else ()

    def cluster(self, units: int) -> "SystemSpec":
        """`units` of this system, joined by their chips' network cards.

        Raises ConfigError for less than one, or for chips without a network card.
        """
        if units < 1:
            raise ConfigError("units", units, "at least 1")
        if units > 1 and (self.chip.scale_out_bytes_per_s is None):
            raise ConfigError("units", units, f"1: {self.name} has no scale-out network")
        if units == 1:
            return self

        return replace(
            self,
            name=f"{units} x {self.name}",
            units=units * self.units,
            chips=_times(units, self.chips),
            cpus=_times(units, self.cpus),
            provisioned_watts=_times(units, self.provisioned_watts),
            variants=tuple(_variant_of_cluster(units, variant) for variant in self.variants),
        )

    def assuming(self, name: str, assumption: str) -> "SystemSpec":
        """The system with one switch of its own or its chip's turned; figures that were set stay.
        ConfigError lists the switches.
        """
        for switch in self.variants:
            if switch.name == name:
                return apply_assumption(self, switch.assumption(assumption))
        if any(switch.name == name for switch in self.chip.switches):
            return replace(self, chip=self.chip.assuming(name, assumption))
        names = ", ".join(switch.name for switch in self.assumption_sets)
        raise ConfigError("assumption", name, f"a switch of {self.name}: {names or 'none'}")


_OF_ALL_UNITS: Final = ("chips", "cpus", "provisioned_watts")


def _times(units: int, figure: Figure) -> Figure:
    source = f"arithmetic: {units} x {figure.value:g} ({figure.source})"
    if figure.is_set:
        source = f"{figure.source}, of each of {units}"
    return replace(figure, value=units * figure.value, source=source)


def _variant_of_cluster(units: int, switch: AssumptionSet) -> AssumptionSet:
    assumptions = []
    for assumption in switch.assumptions:
        figures = {
            field: _times(units, value)
            if field in _OF_ALL_UNITS and isinstance(value, Figure)
            else value
            for field, value in assumption.figures.items()
        }
        assumptions.append(replace(assumption, figures=figures))
    return replace(switch, assumptions=tuple(assumptions))
