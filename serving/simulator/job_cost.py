"""Cost of a training job on leased chips: its steps, the read of its checkpoint, its save.

A job has all chips that it is given; those of several machines step together (*assumed*: what they
exchange hides behind the slowest).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulator.errors import ConfigError, HbmExhausted
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.calibration import Calibration
from emulator.specs.model import ModelSpec
from emulator.specs.system import SystemSpec
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import HandoverCost, checkpoint_write, weights_read
from emulator.ultraserver.training_cost import TrainingCost
from emulator.units import NS_PER_S
from serving.traffic.start_time import START_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """How training is done; `start_s` is the start of a job or a group, without reading."""

    system: SystemSpec
    model: ModelSpec
    recipe: TrainingRecipe
    calibration: Calibration
    rates: RecoveryRates
    start_s: float = START_S

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < float("inf"):
            raise ConfigError(field="start-seconds", value=self.start_s, expected="from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """A step of a job on `chips` chips, at `watts` of them all; `save` and `read` of a checkpoint
    go beyond idle chips.
    """

    chips: int
    step_tokens: int
    step_ns: int
    watts: float
    save: HandoverCost
    read: HandoverCost

    @property
    def tokens_per_s(self) -> float:
        """Tokens that it trains."""
        return self.step_tokens / self.step_ns * NS_PER_S

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.step_ns / NS_PER_S


def best_job(terms: JobTerms, chips: Sequence[int]) -> JobCost | None:
    """The fastest job on chips of the system, over expert-parallel sizes; None where none fits."""
    count, most = len(chips), max(1, terms.model.experts)
    sizes = [ep for ep in range(1, min(count, most) + 1) if count % ep == 0]
    found = [job for ep in sizes if (job := _job(terms, chips, ep))]
    return max(found, key=lambda job: job.tokens_per_s, default=None)


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
    )


def _together(costs: Sequence[HandoverCost]) -> HandoverCost:
    """Of machines at the same time."""
    whole = sum(costs[1:], costs[0])
    return replace(whole, duration_ns=max(each.duration_ns for each in costs))


def _job(terms: JobTerms, chips: Sequence[int], ep: int) -> JobCost | None:
    recipe, physical = replace(terms.recipe, ep=ep), np.array(chips)
    try:
        cost = TrainingCost(
            terms.system, terms.model, physical, recipe, calibration=terms.calibration
        )
    except HbmExhausted:
        return None
    step = cost.step
    return JobCost(
        chips=len(chips),
        step_tokens=step.tokens,
        step_ns=step.duration_ns,
        watts=float(step.chip_watts.sum()),
        save=checkpoint_write(terms.system, physical, cost.checkpoint_bytes, terms.rates),
        read=weights_read(terms.system, physical, cost.checkpoint_bytes, terms.rates),
    )
