"""A machine in a few words for tests of recovery: health, links, survivors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.fabric.link_health import LinkHealth
from emulator.fabric.routes import find_routes
from emulator.faults.survival import SurvivalPlan, WeightBytes, survival
from emulator.specs.catalog.trn3_nl72x2 import TRN3_NL72X2
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.figure import Figure
from emulator.specs.health import Health
from emulator.specs.partition import Partition
from emulator.specs.placement import EMPTY, ExpertPlacement
from emulator.specs.seating import Seating
from emulator.specs.system import SystemSpec

WEIGHTS = WeightBytes(expert_bytes=10, replica_bytes=1_000)


def two_small_racks() -> SystemSpec:
    """Two racks of one tray of four chips: eight chips use every tier but the backplane."""

    def count(value: int) -> Figure:
        return Figure(value=value, unit="count", source="assumed: a machine small enough to try")

    return replace(TRN3_NL72X2, trays_per_rack=count(1), chips=count(8), cpus=count(2))


def lose(chip: int) -> Fault:
    return Fault(kind=FaultKind.LOSE_CHIP, chip=chip)


def cut(chip: int, tier: LinkTier, lanes: int = 0) -> Fault:
    return Fault(kind=FaultKind.CUT_LINK, chip=chip, tier=tier, lanes=lanes)


def pull(rack: int = 0) -> Fault:
    return Fault(kind=FaultKind.PULL_SWITCH_TRAY, rack=rack)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A partition with a placement; each chip has `spare_slots` more."""

    partition: Partition
    placement: ExpertPlacement
    spare_slots: int = 0
    system: SystemSpec = TRN3_NL72X2

    def health_after(self, faults: Sequence[Fault]) -> Health:
        health = Health.whole(self.system, self.partition)
        for fault in faults:
            health = health.after(fault, self.system, self.partition)
        return health

    def reachable(self, health: Health) -> np.ndarray:
        chips = np.arange(self.partition.chips + self.partition.spares)
        links = LinkHealth.of(health, self.system, self.partition)
        return find_routes(self.system, chips + self.partition.first_chip, links).reachable()

    def capacity(self) -> np.ndarray:
        slots = self.placement.slots + self.spare_slots
        return np.full(self.partition.chips, slots, dtype=np.int64)

    def survive(self, health: Health, before: SurvivalPlan | None = None) -> SurvivalPlan:
        """The survival plan; `before` is the last recovery's."""
        return survival(
            before.placement if before else self.placement,
            health,
            self.partition,
            self.system,
            seating=before.seating if before else Seating.home(self.partition),
            capacity=self.capacity(),
            reachable=self.reachable(health),
            weights=WEIGHTS,
        )

    def after(self, *faults: Fault) -> SurvivalPlan:
        return self.survive(self.health_after(faults))


def machine(
    *,
    chips: int,
    experts: int,
    ep: int | None = None,
    tp: int = 1,
    spares: int = 0,
    empty_slots: int = 0,
    layers: int = 2,
    system: SystemSpec = TRN3_NL72X2,
) -> Machine:
    """A machine with evenly spread experts and `empty_slots` more on each chip."""
    ep = ep or chips
    return Machine(
        partition=Partition(chips=chips, tp=tp, ep=ep, spares=spares),
        placement=ExpertPlacement.even(
            layers=layers, experts=experts, chips=chips, ep=ep, spare_slots=empty_slots
        ),
        system=system,
    )


def with_copies(whole: Machine) -> Machine:
    """The same with empty slots filled: each chip copies experts of the next of its group."""
    slots = whole.placement.expert_of_slot.copy()
    for chip in range(whole.placement.chips):
        first = chip // whole.placement.ep * whole.placement.ep
        following = first + (chip + 1 - first) % whole.placement.ep
        for layer in range(whole.placement.layers):
            empty = np.flatnonzero(slots[layer, chip] == EMPTY)
            copied = whole.placement.expert_of_slot[layer, following, : len(empty)]
            slots[layer, chip, empty[: len(copied)]] = copied
    placement = ExpertPlacement(
        experts=whole.placement.experts, ep=whole.placement.ep, expert_of_slot=slots
    )
    return replace(whole, placement=placement)
