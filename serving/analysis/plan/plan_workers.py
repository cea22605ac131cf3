"""Several sizes simulated at once, each in a process of its own."""

from collections.abc import Sequence

from serving.analysis.plan.plan_check import Check, SizeTask, check_size
from serving.analysis.steady_state.simulation_workers import SimulationWorkers


class CheckWorkers(SimulationWorkers):
    """Simulation workers that check sizes."""

    def check(self, tasks: Sequence[SizeTask]) -> list[Check]:
        """Simulate all of them, in their order."""
        return self.map(check_size, tasks)
