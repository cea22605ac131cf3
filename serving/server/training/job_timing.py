"""A job's emulated time, energy and memory, by the cost model."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.compute.model_spec import model_spec
from emulator.data import weights_name
from emulator.faults.recovery_time import RecoveryRates
from emulator.specs.assumptions import with_assumptions
from emulator.specs.model import ModelSpec
from emulator.specs.models import model_by_name
from emulator.specs.shipped_fits import calibration_for
from emulator.specs.systems import system_by_name
from emulator.specs.training_recipe import TrainingRecipe
from emulator.ultraserver.handover_cost import checkpoint_write
from emulator.ultraserver.training_cost import TrainingCost
from emulator.units import NS_PER_S
from serving.server.training.job_spec import JobSpec
from serving.simulator.job_cost import JobTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Emulated time; `joules` are all chips', idle power included."""

    duration_ns: int
    joules: float

    @property
    def watts(self) -> float:
        """The mean power of all chips."""
        return self.joules / self.duration_ns * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """Costs of a job's parts, for its chips without their share of the racks.

    `step` is one optimizer step, `forward` the forward passes of its `step_tokens`; `checkpoint` is
    written to the trays' drives while chips wait. `mfu`: the step's model flops over all chips'
    dense peak of `peak_flops_per_s` each, in BF16; `hfu`: of all products that run.
    """

    step: Spell
    forward: Spell
    step_tokens: int
    checkpoint: Spell
    hbm_bytes_per_chip: int
    model: str
    mfu: float
    hfu: float
    peak_flops_per_s: float

    @property
    def described(self) -> str:
        """A step in a line."""
        return (
            f"a step of {self.model} takes {self.step.duration_ns / NS_PER_S:.4g} emulated s for "
            f"{self.step_tokens:,} tokens: MFU {self.mfu:.1%} of "
            f"{self.peak_flops_per_s / 1e12:,.0f} TFLOP/s bf16 a chip (HFU {self.hfu:.1%})"
        )

    def evaluation(self, tokens: int) -> Spell:
        """Forward passes of `tokens` tokens on all chips."""
        share = tokens / self.step_tokens
        return Spell(
            duration_ns=round(self.forward.duration_ns * share), joules=self.forward.joules * share
        )


def job_timing(spec: JobSpec) -> JobTiming:
    """The cost of `spec` as the declared model's training on the declared system.

    A forward pass has half of the token exchanges, as the backward pass's are as large; *assumed*
    to draw a step's mean power, without delays.

    Raises:
        ConfigError: no such model, system or chips.
        HbmExhausted: the training state does not fit; names the number of chips that would do.
    """
    recipe = TrainingRecipe(
        sequence_tokens=spec.sequence_tokens,
        sequences_per_chip=math.ceil(spec.sequences / spec.chips / spec.micro_batches),
        micro_batches=spec.micro_batches,
        lnc=spec.lnc,
    )
    terms, chips = job_terms(spec), np.array(spec.system_chips)
    system, model = terms.system, terms.model
    cost = TrainingCost(system, model, chips, recipe, calibration=terms.calibration)
    step = Spell(duration_ns=cost.step.duration_ns, joules=cost.step.joules)
    parts_ns = cost.step.parts_ns
    share = (parts_ns["forward"] + parts_ns["dispatch_combine"] / 2) / cost.step.duration_ns
    written = checkpoint_write(system, chips, cost.checkpoint_bytes)
    peak = system.chip.tensor_flops_per_s(recipe.precision)
    able = spec.chips * peak * cost.step.duration_ns / NS_PER_S
    return JobTiming(
        step=step,
        forward=Spell(duration_ns=round(step.duration_ns * share), joules=step.joules * share),
        step_tokens=cost.step.tokens,
        checkpoint=Spell(
            duration_ns=written.duration_ns,
            joules=written.joules + written.idle_joules(system, chips=spec.chips),
        ),
        hbm_bytes_per_chip=cost.hbm.chip_bytes,
        model=model.name,
        mfu=cost.step.model_flops / able,
        hfu=float(cost.step.flops.sum()) / able,
        peak_flops_per_s=peak,
    )


def job_terms(spec: JobSpec) -> JobTerms:
    """The declared model's training on the declared system by the usual recipe; raises ConfigError
    for a model or a system that the catalog has not.
    """
    system = with_assumptions(system_by_name(spec.system), spec.assumptions)
    return JobTerms(
        system=system,
        model=_timed_model(spec),
        recipe=TrainingRecipe(lnc=spec.lnc),
        calibration=calibration_for(system.chip.name, name=spec.calibration),
        rates=RecoveryRates(),
    )


def _timed_model(spec: JobSpec) -> ModelSpec:
    if spec.model is not None:
        return model_by_name(spec.model)
    directory = Path(spec.weights)
    return model_spec(weights_name(directory), directory)
