"""Assumptions on every step: overlap of exchanges, and calibration over the roofline."""

from dataclasses import dataclass, replace
from functools import lru_cache

from emulator.fabric.all_to_all import AllToAll
from emulator.specs.calibration import Calibration
from emulator.specs.chip import ChipSpec
from emulator.specs.model import ModelSpec
from emulator.specs.overlap import Overlap
from emulator.specs.shipped_fits import FITTED, shipped_fits
from emulator.specs.system import SystemSpec
from emulator.timing.expert_distribution import ExpertDistribution
from emulator.ultraserver.step_cost import StepCostModel
from serving.analysis.steady_state.model_error import ModelError, error_in_words, model_error
from serving.analysis.steady_state.partitions import PartitionCandidate


@lru_cache(maxsize=64)
def _all_to_all(system: SystemSpec, chips: int, first_chip: int) -> AllToAll:
    """Of healthy chips: many partitions lie on the same ones."""
    return AllToAll(system, chips, first_chip=first_chip)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAssumptions:
    """Passed on to every cost model."""

    calibration: Calibration
    overlap: Overlap = Overlap.NONE

    def cost_model(
        self,
        system: SystemSpec,
        model: ModelSpec,
        candidate: PartitionCandidate,
        distribution: ExpertDistribution | None = None,
        *,
        draft_tokens: int = 0,
        draft_module: bool = True,
        draft_model: ModelSpec | None = None,
    ) -> StepCostModel:
        """Steps of `model` on the candidate's replica whose chips lie the farthest apart.

        Drafts are those of `StepCostModel`.
        """
        return StepCostModel(
            system,
            model,
            replace(candidate.partition, first_chip=candidate.first_chip),
            distribution=distribution,
            calibration=self.calibration,
            overlap=self.overlap,
            draft_tokens=draft_tokens,
            draft_module=draft_module,
            draft_model=draft_model,
            all_to_all=_all_to_all(system, candidate.partition.chips, candidate.first_chip),
        )

    def calibration_in_words(self, chip: ChipSpec) -> str:
        """The calibration's name and the measurements behind it."""
        name = self.calibration.name
        if name != FITTED:
            return f"calibration {name}, the roofline alone: no stack does better"
        fitted = f"calibration {name}, efficiencies and overheads fitted to public measurements"
        if chip.generation in shipped_fits().everything.generations:
            return f"{fitted} of GPU servers, some of {chip.name}'s generation"
        return f"{fitted} of GPU servers, none like {chip.name}: assumed to hold there"

    @property
    def model_error(self) -> ModelError:
        """By metric: what measured rows were over predictions of a fit without their machine, four
        of five of them; nothing of a roofline.
        """
        return model_error(self.calibration.name)

    def model_error_in_words(self) -> str:
        """`model_error`, as a report says it."""
        return error_in_words(self.model_error)
