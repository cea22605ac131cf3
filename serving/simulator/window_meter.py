"""Time and energy of the steps that begin within a window of a run."""

from dataclasses import dataclass

from emulator.ultraserver.step_cost import THROTTLE, StepCost
from emulator.units import NS_PER_S


@dataclass(slots=True)
class WindowMeter:
    """Sums the steps that begin in [`begin_ns`, `end_ns`).

    `throttled_ns`: by how much power limits lengthen steps.
    """

    begin_ns: float
    end_ns: float
    busy_ns: int = 0
    throttled_ns: float = 0.0
    joules: float = 0.0

    def add(self, cost: StepCost, begin_ns: int) -> None:
        """Count a step, if it begins within the stretch."""
        if self.begin_ns <= begin_ns < self.end_ns:
            self.busy_ns += cost.duration_ns
            self.throttled_ns += cost.parts_ns[THROTTLE]
            self.joules += cost.chip_joules

    def watts(self, idle_watts: float) -> float:
        """Mean watts of the window, idle times included; 0 for an empty window."""
        idle_ns = max(0.0, self.end_ns - self.begin_ns - self.busy_ns)
        joules = self.joules + idle_watts * idle_ns / NS_PER_S
        return joules / (self.busy_ns + idle_ns) * NS_PER_S if self.busy_ns + idle_ns else 0.0

    @property
    def busy_share(self) -> float:
        """At most 1: a step may outlast the window in which it begins."""
        length_ns = self.end_ns - self.begin_ns
        return min(1.0, self.busy_ns / length_ns) if length_ns else 0.0

    @property
    def throttled_share(self) -> float:
        """Of the steps' time."""
        return self.throttled_ns / self.busy_ns if self.busy_ns else 0.0
