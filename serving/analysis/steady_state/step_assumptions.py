"""What is assumed of every step: how far exchanges hide, what stacks add to a roofline."""

from dataclasses import dataclass, replace

from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.partition import Partition
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAssumptions:
    """Passed on to every cost model."""

    overlap: Overlap = Overlap.NONE
    calibration: Calibration = ROOFLINE

    def cost_model(
        self,
        system: SystemSpec,
        model: ModelSpec,
        partition: Partition,
        *,
        first_chip: int = 0,
        distribution: ExpertDistribution | None = None,
    ) -> StepCostModel:
        """Steps of `model` on `partition`, moved to `first_chip`."""
        return StepCostModel(
            system,
            model,
            replace(partition, first_chip=first_chip),
            distribution=distribution,
            calibration=self.calibration,
            overlap=self.overlap,
        )
