"""Compares predicted with published training speeds, run by run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from emulator.specs.calibration import ROOFLINE, Calibration
from emulator.specs.models import model_by_name
from emulator.specs.published_trainings import PUBLISHED_TRAININGS, PublishedTraining, Speed
from emulator.specs.recipe_columns import RecipeColumns
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.ultraserver.recipe_costs import RecipeCostModel
from emulator.units import NS_PER_S

TERA: Final = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheck:
    """One published run; predictions are in the unit of its figure.

    `predicted` uses overheads of today's stacks, `roofline` none.
    """

    published: PublishedTraining
    predicted: float
    roofline: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive where it is too fast."""
        return self.predicted / self.published.measured.value - 1


def training_checks(
    calibrations: Callable[[str], Calibration] = calibration_for,
) -> tuple[TrainingCheck, ...]:
    """Predictions of every published run, even if it does not fit its chips (see `differs`).

    Args:
        calibrations: by a chip's name.
    """
    return tuple(_check(published, calibrations) for published in PUBLISHED_TRAININGS)


def _check(
    published: PublishedTraining, calibrations: Callable[[str], Calibration]
) -> TrainingCheck:
    domain = system_by_name(published.system)
    system = domain.cluster(-(-published.chips // domain.chips.count))
    columns = RecipeColumns.of(published.recipe, published.chips)
    speeds = []
    for calibration in (calibrations(system.chip.name), ROOFLINE):
        costs = RecipeCostModel(
            system, model_by_name(published.model), published.chips, calibration=calibration
        ).costs(columns)
        step_s = float(costs.duration_ns[0]) / NS_PER_S
        tokens = published.measured.unit == Speed.TOKENS
        done = columns.step_tokens[0] if tokens else costs.model_flops[0] / TERA
        speeds.append(float(done) / step_s / published.chips)
    predicted, roofline = speeds
    return TrainingCheck(published=published, predicted=predicted, roofline=roofline)
