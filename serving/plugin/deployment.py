"""What an engine emulates: the settings and the weights directory, resolved and checked.

Pure but for reading config.json; made in the API process to refuse early, and in the engine.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.data import SMALL_MOE_DIR
from emulator.errors import CheckpointError
from emulator.model import (
    ModelSpec,
    Partition,
    StepCostModel,
    SystemSpec,
    check_partition,
    check_weights,
    model_by_name,
    system_by_name,
)
from serving.settings import Settings

_FP32_BYTES = 4  # the chips keep the weights' KV in the dtype they compute in


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A partition of a system, the model that is timed on it, the weights that compute tokens."""

    settings: Settings
    system: SystemSpec
    partition: Partition
    time_model: ModelSpec
    weights_dir: Path
    weights_name: str
    weights_kv_bytes_per_token: int
    cost: StepCostModel

    def info(self) -> dict[str, str]:
        """Labels that say what is emulated."""
        return {
            "system": self.system.name,
            "chips": str(self.partition.chips),
            "time_model": self.time_model.name,
            "weights": self.weights_name,
            "routing": self.cost.routing,
            "clock": self.settings.clock,
        }


def resolve_deployment(settings: Settings, weights_dir: Path) -> Deployment:
    """Resolve names and check the rules that tie chips, experts and HBM.

    Raises:
        ConfigError: an unknown name, more chips than the system has, experts that do not divide.
        CheckpointError: `weights_dir` holds no checkpoint that the chips can compute.
        HbmExhausted: the timed model's weights do not fit the chips.
    """
    system = _system(settings)
    check_weights(weights_dir)
    weights = _weights_model(weights_dir)
    time_model = model_by_name(settings.model) if settings.model else weights
    partition = Partition(chips=settings.chips, tp=1, ep=settings.chips)
    experts = {f"weights {weights.name}": weights.experts}
    if time_model is not weights:
        experts[time_model.name] = time_model.experts
    check_partition(partition, system, experts)
    cost = StepCostModel(system, time_model, partition)
    cost.hbm_free_bytes_per_chip()  # refuses a model that does not fit
    return Deployment(
        settings=settings,
        system=system,
        partition=partition,
        time_model=time_model,
        weights_dir=weights_dir,
        weights_name=weights.name,
        weights_kv_bytes_per_token=_FP32_BYTES
        * weights.kv_bytes_per_token
        // weights.kv_bytes_per_element,
        cost=cost,
    )


def _system(settings: Settings) -> SystemSpec:
    system = system_by_name(settings.system)
    if settings.pue is None:
        return system
    return replace(system, pue=replace(system.pue, value=settings.pue, source="given by the user"))


def _weights_model(weights_dir: Path) -> ModelSpec:
    path = weights_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{weights_dir}: not a checkpoint directory ({error})") from error
    bundled = weights_dir.resolve() == SMALL_MOE_DIR.resolve()
    name = "small-moe" if bundled else weights_dir.resolve().name
    return ModelSpec.from_hf_config(name, config, source=str(path))
