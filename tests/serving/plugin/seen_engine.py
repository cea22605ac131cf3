"""Snapshots of a live engine in this process, whose clock is the test's."""

from typing import Any

from emulator.sim.clock import DilatedClock
from emulator.units import NS_PER_S
from serving.wire.control_call import SnapshotReply, SnapshotRequest
from serving.wire.machine_snapshot import MachineSnapshot
from tests.serving.plugin.running_engine import Running


class Seen(Running):
    """An engine under its own clock."""

    def __init__(self, **settings: Any) -> None:
        self._wall_ns = 0
        clock = DilatedClock(1.0, wall_ns=lambda: self._wall_ns, sleep_s=self.rest)
        super().__init__(clock, **settings)

    def rest(self, seconds: float) -> None:
        """Let time pass without computing."""
        self._wall_ns += round(seconds * NS_PER_S)

    def spend(self, joules: float, *chips: int) -> None:
        """Book energy of chips beyond steps and idle power, as for leases and hand-overs."""
        self.engine._meters.ledger.charge(joules, chips)

    def look(self) -> MachineSnapshot:
        reply = self.ask(SnapshotRequest())
        assert isinstance(reply, SnapshotReply)
        return reply.snapshot


def full_system() -> MachineSnapshot:
    """A snapshot of 144 chips after a step with synthetic tokens."""
    running = Seen(chips=144, tp=1, model="deepseek-v3", computes=False)
    running.step(*range(144))
    return running.look()
