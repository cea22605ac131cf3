"""A model laid out on a machine, to count a step's work on."""

from dataclasses import dataclass

from emulator.arrays import Bools, Int64s
from emulator.fabric.all_to_all import AllToAll
from emulator.fabric.tiers import inside_a_domain
from emulator.specs.model import ModelSpec
from emulator.specs.partition import Partition
from emulator.specs.placement import ExpertPlacement
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineLayout:
    """Experts are placed on blocks of `expert_tp` chips, which share them. `physical`: the system's
    numbers of the chips, of a vacant position its own; `all_to_all`: their links. A rank is absent
    unless all its chips are up. `stores_slower`: see `Calibration`.
    """

    system: SystemSpec
    model: ModelSpec
    partition: Partition
    placement: ExpertPlacement
    distribution: ExpertDistribution
    all_to_all: AllToAll
    physical: Int64s  # [chips]
    chips_up: Bools  # [chips]
    stores_slower: float = 1.0

    @property
    def exchanges_inside_a_domain(self) -> bool:
        """Whether the chips of each expert group are of one scale-up domain."""
        return inside_a_domain(self.system, self.physical.reshape(-1, self.partition.expert_group))
