"""The models that the catalog knows, by name."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.model import ModelSpec
from emulator.specs.qwen3_30b_a3b import QWEN3_30B_A3B

MODELS: Final[dict[str, ModelSpec]] = {QWEN3_30B_A3B.name: QWEN3_30B_A3B}


def model_by_name(name: str) -> ModelSpec:
    """The model of that name; raises ConfigError that lists the names."""
    if name not in MODELS:
        raise ConfigError(field="model", value=name, expected=f"one of {', '.join(MODELS)}")
    return MODELS[name]
