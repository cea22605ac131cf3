"""The model families by the names in config.json's `architectures`."""

from collections.abc import Mapping
from typing import Any

from emulator.compute.config_reader import ConfigReader
from emulator.compute.families.deepseek_v3 import DeepseekV3
from emulator.compute.families.family import ModelFamily
from emulator.compute.families.gpt_oss import GptOss
from emulator.compute.families.llama import Llama
from emulator.compute.families.mixtral import Mixtral
from emulator.compute.families.qwen3 import Qwen3, Qwen3Moe
from emulator.errors import CheckpointError

FAMILIES: Mapping[str, ModelFamily] = {
    name: family
    for family in (Llama(), Qwen3(), Qwen3Moe(), Mixtral(), GptOss(), DeepseekV3())
    for name in family.names
}


def family_of(config: ConfigReader) -> ModelFamily:
    """The family of a parsed config.json; raises CheckpointError for another."""
    names: Any = config.values.get("architectures") or ["none"]
    name = names[0] if isinstance(names, list) else names
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"{config.path}: architectures={name}: only {', '.join(FAMILIES)} are computed"
        )
    return FAMILIES[name]
