"""The question of a training recipe, answered by the cost model: speed, memory, goodput."""

from dataclasses import dataclass
from typing import Final

from emulator.errors import ConfigError
from emulator.faults.goodput import CHIP_MTBF_HOURS, Goodput, goodput
from emulator.faults.recovery_time import RecoveryRates
from emulator.memory.training_memory import checkpoint_bytes, trained_model
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.recipe_columns import RecipeColumns
from emulator.specs.system import SystemSpec
from emulator.ultraserver.handover_cost import checkpoint_write, weights_read
from emulator.ultraserver.recipe_costs import RecipeCosts
from emulator.ultraserver.recipe_links import job_chips
from emulator.ultraserver.recipe_search import (
    FoundRecipes,
    RecipeSpace,
    best_recipes,
    fewest_training_chips,
)
from emulator.units import NS_PER_S
from serving.traffic.start_time import START_S

UNITS_MAX: Final = 8
"""Domains that are tried where none are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTerms:
    """Failures of a job, and what follows; a checkpoint every `interval_s`, or the best."""

    chip_mtbf_s: float = 3_600 * CHIP_MTBF_HOURS.value
    interval_s: float | None = None
    start_s: float = START_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeQuestion:
    """A model to train on `domain`s: on `units` of them, or as few as hold it; on all their chips,
    or on `chips`. Raises ConfigError for none of either.
    """

    domain: SystemSpec
    model: ModelSpec
    space: RecipeSpace
    calibration: Calibration
    failures: FailureTerms
    units: int | None = None
    chips: int | None = None
    rows: int = 5

    def __post_init__(self) -> None:
        for name in ("units", "chips", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(name, value, "at least 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecipePlan:
    """The answer. `fewest_chips`: that hold any recipe of the space, on up to UNITS_MAX domains."""

    question: RecipeQuestion
    system: SystemSpec
    chips: int
    fewest_chips: int | None
    found: FoundRecipes
    goodput: Goodput

    @property
    def best(self) -> RecipeCosts:
        """The fastest recipe, alone."""
        return self.found.costs[0]

    def utilisation(self, costs: RecipeCosts, precision: str) -> tuple[float, float]:
        """MFU and HFU of a recipe, over the peak in `precision`."""
        seconds = float(costs.duration_ns[0]) / NS_PER_S
        peak = self.chips * self.system.chip.tensor_flops_per_s(precision) * seconds
        return float(costs.model_flops[0]) / peak, float(costs.flops[0]) / peak


def recipe_plan(question: RecipeQuestion) -> RecipePlan:
    """Search; raises ConfigError, and HbmExhausted with bytes where nothing fits."""
    domain, model, space = question.domain, question.model, question.space
    joined = domain.chip.scale_out_bytes_per_s is not None
    fewest = fewest_training_chips(domain, model, space, units=UNITS_MAX if joined else 1)
    width = domain.chips.count
    units = question.units or -(-(question.chips or fewest or width) // width)
    system = domain.cluster(units)
    chips = question.chips or system.chips.count
    found = best_recipes(
        system, model, chips, space, calibration=question.calibration, count=question.rows
    )
    return RecipePlan(
        question=question,
        system=system,
        chips=chips,
        fewest_chips=fewest,
        found=found,
        goodput=_goodput(question, system, chips, found.costs[0].columns),
    )


def _goodput(
    question: RecipeQuestion, system: SystemSpec, chips: int, columns: RecipeColumns
) -> Goodput:
    """Chips wait while a checkpoint goes to their trays' drives, and read it after a fault."""
    rates, failures = RecoveryRates(), question.failures
    on_chips = checkpoint_bytes(trained_model(question.model, columns.base), columns)
    physical = job_chips(system, chips)
    save_s = checkpoint_write(system, physical, on_chips, rates).duration_ns / NS_PER_S
    read_s = weights_read(system, physical, on_chips, rates).duration_ns / NS_PER_S
    return goodput(
        chips=chips,
        chip_mtbf_s=failures.chip_mtbf_s,
        save_s=save_s,
        restart_s=rates.hang_ns.value / NS_PER_S + failures.start_s + read_s,
        interval_s=failures.interval_s,
    )
