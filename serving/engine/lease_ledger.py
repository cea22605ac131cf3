"""Cost of hand-overs (bytes, times, joules beyond idle), by lease and in total."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from emulator.units import NS_PER_S
from serving.engine.expert_moves import MovedExperts
from serving.engine.lease_record import Lease
from serving.engine.ledger import Ledger
from serving.engine.live_machine import LiveMachine
from serving.wire.machine_state import NO_TRAINING, TrainingTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTotals:
    """Since the engine's start: completed hand-overs, there and back, and their cost; tokens and
    joules, idle power included, that jobs reported.
    """

    handovers: int = 0
    handover_bytes: int = 0
    handover_joules: float = 0.0
    training_tokens: int = 0
    training_joules: float = 0.0


class LeaseLedger:
    """Counts for leases of a live machine; charges joules beyond idle to `ledger`."""

    def __init__(self, live: LiveMachine, ledger: Ledger) -> None:
        self._machine = live.machine
        self._ledger = ledger
        self._idle_chip_watts = live.machine.cost_model.idle_chip_watts
        self.totals = LeaseTotals()

    def count_handover(self) -> None:
        """Count a group that has left, or is back."""
        self._add(handovers=1)

    def count_experts(self, lease: Lease, moved: MovedExperts) -> None:
        """Count the expert moves of a lease's hand-over."""
        lease.change(
            experts_moved=lease.state.experts_moved + moved.copies,
            bytes_links=lease.state.bytes_links + moved.link_bytes,
            experts_s=lease.state.experts_s + moved.duration_ns / NS_PER_S,
        )
        self._add(handover_bytes=moved.link_bytes)
        self._ledger.charge(moved.joules)
        self._count_joules(lease, moved.joules + self._idle_joules(lease, moved.duration_ns))

    def read(self, lease: Lease, chips: Collection[int]) -> int:
        """Count a read of weights by `chips`; returns its duration in ns."""
        if not chips:
            return 0
        cost = self._machine.reading(chips)
        lease.change(bytes_storage=lease.state.bytes_storage + cost.bytes_storage)
        self._add(handover_bytes=cost.bytes_storage)
        self._ledger.charge(cost.joules, chips)
        self._count_joules(lease, cost.joules)
        return cost.duration_ns

    def count_reading(self, lease: Lease, duration_ns: int) -> None:
        """Count a lease's wait for its weights."""
        lease.change(restore_s=lease.state.restore_s + duration_ns / NS_PER_S)
        self._count_joules(lease, self._idle_joules(lease, duration_ns))

    def count_warm_up(self, lease: Lease, duration_ns: int, joules: float) -> None:
        """Count a lease's warm-up step, whose energy the engine has counted already."""
        lease.change(warm_s=lease.state.warm_s + duration_ns / NS_PER_S)
        self._count_joules(lease, joules)

    def take_note(self, lease: Lease, totals: TrainingTotals) -> None:
        """Record a job's totals; charge its chips' joules beyond idle since its last note."""
        before = lease.state.training or NO_TRAINING
        lease.change(training=totals)
        joules = totals.joules - before.joules
        chips = lease.working_chips or lease.state.chips
        idle_joules = self._idle_chip_watts * len(chips) * (totals.emulated_s - before.emulated_s)
        self._ledger.charge(max(0.0, joules - idle_joules), chips)
        self._add(
            training_tokens=max(0, totals.tokens - before.tokens),
            training_joules=max(0.0, joules),
        )

    def _idle_joules(self, lease: Lease, duration_ns: int) -> float:
        """Idle joules of its chips while they change hands; the engine counts them too."""
        return self._idle_chip_watts * len(lease.state.chips) * duration_ns / NS_PER_S

    def _count_joules(self, lease: Lease, joules: float) -> None:
        lease.change(joules=lease.state.joules + joules)
        self._add(handover_joules=joules)

    def _add(self, **more: float) -> None:
        totals = {name: getattr(self.totals, name) + value for name, value in more.items()}
        self.totals = replace(self.totals, **totals)
