"""A snapshot of a running engine with its description, and the difference of two."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from emulator.memory.lnc import CoreMap, core_map
from emulator.specs.chips import chip_by_name
from serving.wire.machine_snapshot import MachineSnapshot
from serving.wire.machine_state import ChipHealth, ChipState, LeaseState
from serving.wire.system_description import SystemDescription

_Total = TypeVar("_Total", int, float)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineSnapshot:
    """A snapshot with the description of its engine."""

    snapshot: MachineSnapshot
    description: SystemDescription

    @property
    def cores(self) -> CoreMap:
        """The logical cores of each chip."""
        return _cores(self.description.chip.name, self.description.partition.lnc)

    def core_ids(self, chip: int) -> tuple[int, ...]:
        """A chip's logical cores, numbered over all chips."""
        cores = self.cores
        return tuple(cores.global_core(chip=chip, core=core.core) for core in cores.cores)

    def in_use(self) -> tuple[ChipState, ...]:
        """Chips with an engine process: seated in a rank, and neither gone nor leased."""
        gone = (ChipHealth.LOST, ChipHealth.HUNG)
        chips = self.snapshot.state.chips
        lent = {chip for lease in self.training() for chip in lease.chips}
        return tuple(
            chip
            for chip in chips
            if chip.rank is not None and chip.health not in gone and chip.chip not in lent
        )

    def training(self) -> tuple[LeaseState, ...]:
        """Leases whose chips a training job has."""
        return tuple(lease for lease in self.snapshot.state.leases if lease.phase == "training")

    def begins_after(self, other: "EngineSnapshot") -> bool:
        """Whether the engine has restarted since `other`: totals went back."""
        now, then = self.snapshot, other.snapshot
        return now.emulated_s < then.emulated_s or now.state.steps < then.state.steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Between:
    """An engine's work between two snapshots; from its start if it restarted."""

    before: EngineSnapshot | None
    now: EngineSnapshot

    @classmethod
    def of(cls, before: EngineSnapshot | None, now: EngineSnapshot) -> "Between":
        """Pair two snapshots in their order."""
        restarted = before is not None and now.begins_after(before)
        return cls(before=None if restarted else before, now=now)

    @property
    def emulated_s(self) -> float:
        """Its length."""
        return self._grown(lambda snapshot: snapshot.emulated_s)

    @property
    def steps(self) -> int:
        """Steps that ended in it."""
        return self._grown(lambda snapshot: snapshot.state.steps)

    def faults(self, kind: str) -> int:
        """Faults of a kind that happened in it."""
        return self._grown(lambda snapshot: snapshot.faults_by_kind.get(kind, 0))

    def busy_share(self, chip: int) -> float:
        """Share of it in which a chip was busy, at most 1; 0 when no time has passed.

        A step counts where it ends, so that the quotient can exceed 1.
        """
        busy_s = self._grown(lambda snapshot: snapshot.meters[chip].busy_s)
        return min(max(busy_s / self.emulated_s, 0.0), 1.0) if self.emulated_s > 0 else 0.0

    def flops_per_s(self, chip: int) -> float:
        """Floating-point operations per emulated second; 0 when no time has passed."""
        flops = self._grown(lambda snapshot: snapshot.meters[chip].flops)
        return max(flops, 0.0) / self.emulated_s if self.emulated_s > 0 else 0.0

    def _grown(self, total: Callable[[MachineSnapshot], _Total]) -> _Total:
        now = total(self.now.snapshot)
        return now if self.before is None else now - total(self.before.snapshot)


@cache
def _cores(chip: str, lnc: int) -> CoreMap:
    return core_map(chip_by_name(chip), lnc)
