"""Architecture of a computable model, from a Hugging Face config.json of Qwen3-MoE.

Refuses variants that the numpy kernels cannot compute, by name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.compute.rope_settings import RopeSettings, read_rope_settings
from emulator.errors import CheckpointError

SUPPORTED = "Qwen3MoeForCausalLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Dimensions of a Qwen3-MoE decoder, all layers mixture-of-experts."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    normalise_expert_weights: bool
    vocab: int
    max_context_tokens: int
    tied_embeddings: bool
    norm_eps: float
    rope: RopeSettings


def read_architecture(directory: Path) -> Architecture:
    """Read `directory`/config.json; raises CheckpointError for anything but a supported variant."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory}: not a checkpoint directory, no config.json") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return architecture_from_config(config, str(path))


def architecture_from_config(config: Mapping[str, Any], path: str) -> Architecture:
    """Translate a parsed config.json; `path` names it in errors."""
    names = config.get("architectures") or ["none"]
    names = [names] if isinstance(names, str) else names
    if names[0] != SUPPORTED:
        raise CheckpointError(f"{path}: architectures={names[0]}: only {SUPPORTED} is computed")
    _refuse_variants(config, path)
    numbers = _Numbers(config, path)
    heads, hidden = numbers.whole("num_attention_heads"), numbers.whole("hidden_size")
    spellings = ("num_experts", "num_local_experts")
    experts = next((key for key in spellings if key in config), spellings[0])
    head_dim = hidden // heads if config.get("head_dim") is None else numbers.whole("head_dim")
    if head_dim % 2:
        raise CheckpointError(f"{path}: head_dim={head_dim}: must be even, as rotary pairs need")
    return Architecture(
        layers=numbers.whole("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=numbers.whole("num_key_value_heads"),
        head_dim=head_dim,
        experts=numbers.whole(experts),
        experts_per_token=numbers.whole("num_experts_per_tok"),
        expert_intermediate=numbers.whole("moe_intermediate_size"),
        normalise_expert_weights=bool(config.get("norm_topk_prob", False)),
        vocab=numbers.whole("vocab_size"),
        max_context_tokens=numbers.whole("max_position_embeddings"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        norm_eps=numbers.real("rms_norm_eps", default=1e-6),
        rope=read_rope_settings(config, path),
    )


class _Numbers:
    """The numbers of a config; raises CheckpointError with the key and `path`."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        self._config = config
        self._path = path

    def whole(self, key: str) -> int:
        if key not in self._config:
            raise CheckpointError(f"{self._path}: key {key} is missing")
        value = self._config[key]
        if type(value) is not int or value < 1:
            raise CheckpointError(f"{self._path}: {key}={value}: must be a whole number above 0")
        return value

    def real(self, key: str, *, default: float) -> float:
        value = self._config.get(key, default)
        if type(value) not in (int, float) or not value > 0:
            raise CheckpointError(f"{self._path}: {key}={value}: must be a number above 0")
        return float(value)


def _refuse_variants(config: Mapping[str, Any], path: str) -> None:
    variants = {
        "attention_bias": (bool(config.get("attention_bias")), "must be false"),
        "use_sliding_window": (bool(config.get("use_sliding_window")), "must be false"),
        "mlp_only_layers": (bool(config.get("mlp_only_layers")), "must be empty (all layers MoE)"),
        "decoder_sparse_step": (config.get("decoder_sparse_step", 1) != 1, "must be 1"),
        "hidden_act": (config.get("hidden_act", "silu") != "silu", "must be silu"),
        "quantization_config": (bool(config.get("quantization_config")), "must be absent"),
    }
    for key, (found, wanted) in variants.items():
        if found:
            raise CheckpointError(f"{path}: {key}={config[key]}: {wanted} to be computed here")
