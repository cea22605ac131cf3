"""Health of the machine: chips, stacks, lanes and switch trays lost to faults.

Chips are those of a partition and its spares, numbered from the partition's first.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from emulator.arrays import Bools, Float64s, Int64s
from emulator.errors import ConfigError
from emulator.specs.fault import Fault, FaultKind, LinkTier
from emulator.specs.link_lanes import lanes_of
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec

TIERS = tuple(LinkTier)  # the columns of `lanes_down`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Health:
    """The state of `chips` chips (spares last) and of the system's racks.

    A failed HBM stack takes its chip out of service: each stack holds, in every layer, some heads'
    keys and values and some columns of every expert (LNC 1 and 2 allocate in the core's own stack,
    LNC 8 over all), so no layer can be computed without it.
    """

    lost: Bools  # [chips]
    hung: Bools  # [chips]
    failed_stacks: Bools  # [chips, stacks]
    slow_factor: Float64s  # [chips]: its engines take this many times as long
    lanes_down: Int64s  # [chips, tiers]
    switch_trays_out: Int64s  # [racks]
    lent: Bools  # [chips]: they work, for somebody else

    @classmethod
    def whole(cls, system: SystemSpec, partition: Partition) -> "Health":
        """The partition's chips and spares without failures."""
        chips = partition.chips + partition.spares
        return cls(
            lost=np.zeros(chips, dtype=np.bool_),
            hung=np.zeros(chips, dtype=np.bool_),
            failed_stacks=np.zeros((chips, system.chip.hbm_stacks.count), dtype=np.bool_),
            slow_factor=np.ones(chips),
            lanes_down=np.zeros((chips, len(TIERS)), dtype=np.int64),
            switch_trays_out=np.zeros(system.racks.count, dtype=np.int64),
            lent=np.zeros(chips, dtype=np.bool_),
        )

    @property
    def works(self) -> Bools:
        """Chips that can compute, bool[chips]; slow ones and those without links can."""
        works: Bools = ~(self.lost | self.hung | self.failed_stacks.any(axis=1))
        return works

    @property
    def is_whole(self) -> bool:
        """Whether every chip is in service, and no link has failed."""
        links = self.lanes_down.any() or self.switch_trays_out.any()
        return bool(self.in_service.all() and not links)

    @property
    def in_service(self) -> Bools:
        """Chips that can compute and are not lent out, bool[chips]."""
        in_service: Bools = self.works & ~self.lent
        return in_service

    def lending(self, chips: Collection[int]) -> "Health":
        """This state with `chips`, which are in service, lent out."""
        assert self.in_service[list(chips)].all(), chips
        lent = self.lent.copy()
        lent[list(chips)] = True
        return replace(self, lent=lent)

    def returning(self, chips: Collection[int]) -> "Health":
        """This state with `chips` no longer leased; failed ones stay out."""
        assert self.lent[list(chips)].all(), chips
        lent = self.lent.copy()
        lent[list(chips)] = False
        return replace(self, lent=lent)

    def state_of(self, chip: int) -> str:
        """One word or two: why a chip is out of service, or its state in it."""
        if self.lost[chip]:
            return "lost"
        if self.hung[chip]:
            return "hung"
        if self.failed_stacks[chip].any():
            stacks = ", ".join(map(str, np.flatnonzero(self.failed_stacks[chip])))
            return f"HBM stack {stacks} failed"
        if self.lent[chip]:
            return "lent out"
        if self.slow_factor[chip] > 1:
            return f"slow x{self.slow_factor[chip]:g}"
        return "up"

    def after(self, fault: Fault, system: SystemSpec, partition: Partition) -> "Health":
        """This state after `fault`; a slow chip takes its last factor.

        Raises ConfigError for an unknown or already lost chip, stack, lane or rack.
        """
        if fault.kind is FaultKind.PULL_SWITCH_TRAY:
            return self._without_switch_tray(fault.rack, system)
        self._check_chip(fault.chip, partition)
        if fault.kind is FaultKind.LOSE_CHIP:
            return replace(self, lost=_marked(self.lost, fault.chip))
        if fault.kind is FaultKind.HANG_CHIP:
            return replace(self, hung=_marked(self.hung, fault.chip))
        if fault.kind is FaultKind.SLOW_CHIP:
            slow_factor = self.slow_factor.copy()
            slow_factor[fault.chip] = fault.factor
            return replace(self, slow_factor=slow_factor)
        if fault.kind is FaultKind.FAIL_STACK:
            return self._without_stack(fault.chip, fault.stack)
        assert fault.tier is not None, fault
        return self._without_lanes(fault.chip, fault.tier, fault.lanes, system)

    def healed(self, chip: int | None = None, rack: int | None = None) -> "Health":
        """This state with `chip`, or the switch trays of `rack`, repaired; by default everything.

        Raises ConfigError for an unknown chip or rack, or for both.
        """
        if rack is not None:
            return self._with_switch_trays(rack, chip)
        if chip is not None:
            self._check_exists(chip, f"one of the machine's {len(self.lost)} chips")
        row = slice(None) if chip is None else slice(chip, chip + 1)
        lost, hung = self.lost.copy(), self.hung.copy()
        failed_stacks, slow_factor = self.failed_stacks.copy(), self.slow_factor.copy()
        lanes_down, switch_trays_out = self.lanes_down.copy(), self.switch_trays_out.copy()
        lost[row] = hung[row] = failed_stacks[row] = False
        slow_factor[row] = 1.0
        lanes_down[row] = 0
        if chip is None:
            switch_trays_out[:] = 0
        return replace(
            self,
            lost=lost,
            hung=hung,
            failed_stacks=failed_stacks,
            slow_factor=slow_factor,
            lanes_down=lanes_down,
            switch_trays_out=switch_trays_out,
        )

    def _with_switch_trays(self, rack: int, chip: int | None) -> "Health":
        if chip is not None:
            raise ConfigError("rack", rack, "a chip or a rack, not both")
        trays = self.switch_trays_out.copy()
        if not 0 <= rack < len(trays):
            raise ConfigError("rack", rack, f"0 to {len(trays) - 1}")
        trays[rack] = 0
        return replace(self, switch_trays_out=trays)

    def _check_exists(self, chip: int, expected: str) -> None:
        if not 0 <= chip < len(self.lost):
            raise ConfigError("chip", chip, expected)

    def _check_chip(self, chip: int, partition: Partition) -> None:
        last = partition.chips + partition.spares - 1
        spares = f" and {partition.spares} spares" if partition.spares else ""
        self._check_exists(chip, f"0 to {last}, of the partition's {partition.chips} chips{spares}")
        if not self.works[chip]:
            raise ConfigError("chip", chip, f"a chip in service; it is {self.state_of(chip)}")

    def _without_stack(self, chip: int, stack: int) -> "Health":
        stacks = self.failed_stacks.shape[1]
        if stack >= stacks:
            raise ConfigError("stack", stack, f"0 to {stacks - 1}")
        failed = self.failed_stacks.copy()
        failed[chip, stack] = True
        return replace(self, failed_stacks=failed)

    def _without_lanes(self, chip: int, tier: LinkTier, lanes: int, system: SystemSpec) -> "Health":
        column = TIERS.index(tier)
        lanes_by_tier = lanes_of(system.chip)
        if tier not in lanes_by_tier:
            known = ", ".join(lanes_by_tier)
            raise ConfigError("tier", tier, f"a tier of {system.chip.name}: {known}")
        left = lanes_by_tier[tier].lanes.count - int(self.lanes_down[chip, column])
        if lanes > left or not left:
            raise ConfigError(
                "lanes", lanes, f"at most {left}, the {tier} lanes that chip {chip} has left"
            )
        down = self.lanes_down.copy()
        down[chip, column] += lanes or left
        return replace(self, lanes_down=down)

    def _without_switch_tray(self, rack: int, system: SystemSpec) -> "Health":
        if rack >= system.racks.count:
            raise ConfigError("rack", rack, f"0 to {system.racks.count - 1}")
        trays = system.switch_trays_per_rack.count
        if self.switch_trays_out[rack] >= trays:
            raise ConfigError(
                "rack", rack, f"a rack with a switch tray left; all {trays} of this one are out"
            )
        out = self.switch_trays_out.copy()
        out[rack] += 1
        return replace(self, switch_trays_out=out)


def _marked(flags: Bools, chip: int) -> Bools:
    marked = flags.copy()
    marked[chip] = True
    return marked
