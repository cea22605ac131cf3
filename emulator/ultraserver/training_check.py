"""Compares predicted with published training speeds, run by run."""

from dataclasses import dataclass
from typing import Final

from emulator.specs.calibration import ROOFLINE
from emulator.specs.models import model_by_name
from emulator.specs.published_trainings import PUBLISHED_TRAININGS, PublishedTraining, Speed
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.training_cost import TrainingCost

TERA: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheck:
    """One published run; predictions are in the unit of its figure.

    `predicted` uses the fit to serving of today's stacks, `roofline` no overheads.
    """

    published: PublishedTraining
    predicted: float
    roofline: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive where it is too fast."""
        return self.predicted / self.published.measured.value - 1


def training_checks() -> tuple[TrainingCheck, ...]:
    """Predictions of every published run, even if it does not fit its chips (see `differs`)."""
    return tuple(_check(published) for published in PUBLISHED_TRAININGS)


def _check(published: PublishedTraining) -> TrainingCheck:
    system = system_by_name(published.system).cluster(published.units)
    chips = range(system.chips.count)
    speeds = []
    for calibration in (calibration_for(system.chip.name), ROOFLINE):
        cost = TrainingCost(
            system,
            model_by_name(published.model),
            chips,
            published.recipe,
            calibration=calibration,
            checks_hbm=False,
        )
        tokens = published.measured.unit == Speed.TOKENS
        per_chip = cost.step.tokens_per_s / len(chips)
        speeds.append(per_chip if tokens else cost.step.model_flops_per_s_per_chip / TERA)
    predicted, roofline = speeds
    return TrainingCheck(published=published, predicted=predicted, roofline=roofline)
