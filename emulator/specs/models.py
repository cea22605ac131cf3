"""The catalog's models, by name."""

from typing import Final

from emulator.errors import ConfigError
from emulator.specs.catalog.deepseek_v3 import DEEPSEEK_R1, DEEPSEEK_V3, KIMI_K2
from emulator.specs.catalog.gpt_oss import GPT_OSS_20B, GPT_OSS_120B
from emulator.specs.catalog.llama_3_1 import LLAMA_3_1_8B, LLAMA_3_1_70B, LLAMA_3_1_405B
from emulator.specs.catalog.mixtral_8x7b import MIXTRAL_8X7B
from emulator.specs.catalog.qwen3_moe import QWEN3_30B_A3B, QWEN3_235B_A22B
from emulator.specs.model import ModelSpec
from emulator.specs.name_suggestions import did_you_mean

MODELS: Final[dict[str, ModelSpec]] = {
    model.name: model
    for model in (
        QWEN3_30B_A3B,
        QWEN3_235B_A22B,
        GPT_OSS_20B,
        GPT_OSS_120B,
        DEEPSEEK_V3,
        DEEPSEEK_R1,
        KIMI_K2,
        MIXTRAL_8X7B,
        LLAMA_3_1_8B,
        LLAMA_3_1_70B,
        LLAMA_3_1_405B,
    )
}


def model_by_name(name: str) -> ModelSpec:
    """The model of that name, in any case; raises ConfigError that lists the names."""
    if name.lower() not in MODELS:
        raise unknown_model(name, f"one of {', '.join(MODELS)}")
    return MODELS[name.lower()]


def unknown_model(name: str, expected: str) -> ConfigError:
    """The error for an unknown model: the `expected` names, and the nearest one."""
    return ConfigError("model", name, expected + did_you_mean(name, MODELS))
