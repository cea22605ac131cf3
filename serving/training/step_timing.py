"""What a step of the job takes in emulated time, energy and memory: the cost model's word."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.model import ModelSpec, TrainingCost, TrainingRecipe, model_by_name, system_by_name
from emulator.units import NS_PER_S
from serving.training.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """One step of all chips: `joules` are theirs alone, without their share of the racks."""

    duration_ns: int
    joules: float
    hbm_bytes_per_chip: int

    @property
    def watts(self) -> float:
        """What all chips draw during a step."""
        return self.joules / self.duration_ns * NS_PER_S


def step_timing(spec: JobSpec) -> StepTiming:
    """Cost a step of `spec` as the declared model's, on the declared system.

    Raises:
        ConfigError: no such model, system or chips.
        HbmExhausted: the training state does not fit the chips; it says how many would do.
    """
    at_once = math.ceil(spec.sequences / spec.chips / spec.micro_batches)
    recipe = TrainingRecipe(
        sequence_tokens=spec.sequence_tokens,
        sequences_per_chip=at_once,
        micro_batches=spec.micro_batches,
    )
    system = system_by_name(spec.system)
    chips = range(spec.first_chip, spec.first_chip + spec.chips)
    cost = TrainingCost(system, _timed_model(spec), chips, recipe)
    return StepTiming(
        duration_ns=cost.step.duration_ns,
        joules=cost.step.joules,
        hbm_bytes_per_chip=cost.hbm.chip_bytes,
    )


def _timed_model(spec: JobSpec) -> ModelSpec:
    if spec.model is not None:
        return model_by_name(spec.model)
    directory = Path(spec.weights)
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: not a checkpoint directory ({error})") from error
    bundled = directory.resolve() == SMALL_MOE_DIR.resolve()
    name = "small-moe" if bundled else directory.resolve().name
    return ModelSpec.from_hf_config(name, config, source=str(path))
