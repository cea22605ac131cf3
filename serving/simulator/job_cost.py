"""Cost of a training job on leased chips: its steps, the read of its checkpoint, its save.

A job has all chips that it is given; those of several machines step together (*assumed*: what they
exchange hides behind the slowest).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from emulator.errors import ConfigError, HbmExhausted
from emulator.faults.recovery_time import RecoveryRates
from emulator.memory.training_memory import (
    check_training_fits,
    checkpoint_bytes,
    smallest_training_chips,
    trained_model,
    training_cores,
    training_memory,
)
from emulator.specs.calibration import Calibration
from emulator.specs.hbm_usage import HbmOwner
from emulator.specs.model import ModelSpec
from emulator.specs.partition import divisors
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import HandoverCost, checkpoint_write, weights_read
from emulator.ultraserver.recipe_search import (
    RecipeSpace,
    best_recipes,
    fewest_training_chips,
)
from emulator.ultraserver.training_cost import TrainingCost
from emulator.units import NS_PER_S
from serving.traffic.start_time import START_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """How training is done; `start_s` is the start of a job or a group, without reading.

    `searched`: by the fastest recipe on each number of chips, with the batch and precision of
    `recipe`, instead of by `recipe` itself. `ep`: of every job without a search; None for the
    fastest on each number of chips.
    """

    system: SystemSpec
    model: ModelSpec
    recipe: TrainingRecipe
    calibration: Calibration
    rates: RecoveryRates
    start_s: float = START_S
    searched: bool = False
    ep: int | None = None

    @property
    def fewest_chips(self) -> int | None:
        """The fewest chips of the system that hold a job, or None."""
        if self.searched:
            return fewest_training_chips(self.system, self.model, self.space(chips=1))
        return smallest_training_chips(self.system, self.model, self.recipe)

    def hbm_on(self, chips: int) -> Mapping[HbmOwner, int]:
        """Bytes of a chip by owner of a job on so many chips, or on the fewest that hold one.

        Raises HbmExhausted where none do.
        """
        count = max(chips, self.fewest_chips or 0)
        if self.searched:
            space = self.space(chips=count)
            found = best_recipes(
                self.system, self.model, count, space, calibration=self.calibration
            )
            memory = found.memory
        else:
            memory = check_training_fits(self.system, self.model, count, self.recipe)
        return memory.training

    def space(self, *, chips: int) -> RecipeSpace:
        """The recipes of a search on `chips` chips."""
        recipe = self.recipe
        return RecipeSpace(
            sequence_tokens=recipe.sequence_tokens,
            batch_tokens=chips * recipe.step_tokens_per_chip,
            precision=(recipe.precision,),
            virtual_stages=(1,),
            sequences=(1, 2),
            overlap=recipe.overlap,
            lnc=recipe.lnc,
        )

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < float("inf"):
            raise ConfigError(field="start-seconds", value=self.start_s, expected="from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """A step of a job on `chips` chips, at `watts` of them all; `save` and `read` of a checkpoint
    go beyond idle chips. `recipe`: of the largest machine's part.
    """

    chips: int
    step_tokens: int
    step_ns: int
    watts: float
    save: HandoverCost
    read: HandoverCost
    recipe: TrainingRecipe

    @property
    def tokens_per_s(self) -> float:
        """Tokens that it trains."""
        return self.step_tokens / self.step_ns * NS_PER_S

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.step_ns / NS_PER_S


def best_job(terms: JobTerms, chips: Sequence[int]) -> JobCost | None:
    """The fastest job on chips of the system, over expert-parallel sizes, or all recipes of a
    search; None where none fits.
    """
    if terms.searched:
        return _searched_job(terms, chips)
    count, most = len(chips), max(1, terms.model.experts)
    sizes = [ep for ep in divisors(count) if ep <= most and terms.ep in (None, ep)]
    found = [job for ep in sizes if (job := _job(terms, chips, ep))]
    return max(found, key=lambda job: job.tokens_per_s, default=None)


def _searched_job(terms: JobTerms, chips: Sequence[int]) -> JobCost | None:
    """As fast as on the machine's first chips (*assumed*)."""
    count, space = len(chips), terms.space(chips=len(chips))
    try:
        found = best_recipes(terms.system, terms.model, count, space, calibration=terms.calibration)
    except HbmExhausted:
        return None
    best, physical = found.costs[0], np.array(chips)
    on_chips = checkpoint_bytes(trained_model(terms.model, best.columns.base), best.columns)
    return JobCost(
        chips=count,
        step_tokens=int(best.columns.step_tokens[0]),
        step_ns=ceil(best.duration_ns[0]),
        watts=float(best.chip_watts[0]) * count,
        save=checkpoint_write(terms.system, physical, on_chips, terms.rates),
        read=weights_read(terms.system, physical, on_chips, terms.rates),
        recipe=best.columns.recipe(0),
    )


def job_of_machines(terms: JobTerms, machines: Sequence[Sequence[int]]) -> JobCost | None:
    """The job on some chips of each of several machines; chips of one where none fits idle.

    None where none fits at all.
    """
    parts = [part for chips in machines if (part := best_job(terms, chips))]
    if len(parts) < 2:
        return parts[0] if parts else None
    return JobCost(
        chips=sum(part.chips for part in parts),
        step_tokens=sum(part.step_tokens for part in parts),
        step_ns=max(part.step_ns for part in parts),
        watts=sum(part.watts for part in parts),
        save=_together([part.save for part in parts]),
        read=_together([part.read for part in parts]),
        recipe=max(parts, key=lambda part: part.chips).recipe,
    )


def _together(costs: Sequence[HandoverCost]) -> HandoverCost:
    """Of machines at the same time."""
    whole = sum(costs[1:], costs[0])
    return replace(whole, duration_ns=max(each.duration_ns for each in costs))


def _job(terms: JobTerms, chips: Sequence[int], ep: int) -> JobCost | None:
    recipe, physical = replace(terms.recipe, ep=ep), np.array(chips)
    memory = training_memory(terms.system, terms.model, len(chips), recipe)
    if not memory.fits(training_cores(terms.system, recipe)):
        return None
    cost = TrainingCost(
        terms.system,
        terms.model,
        physical,
        recipe,
        calibration=terms.calibration,
        checks_hbm=False,
    )
    step = cost.step
    return JobCost(
        chips=len(chips),
        step_tokens=step.tokens,
        step_ns=step.duration_ns,
        watts=float(step.chip_watts.sum()),
        save=checkpoint_write(terms.system, physical, cost.checkpoint_bytes, terms.rates),
        read=weights_read(terms.system, physical, cost.checkpoint_bytes, terms.rates),
        recipe=recipe,
    )
