"""The shape of a computable model, read from a Hugging Face config.json of Qwen3-MoE.

Everything the numpy kernels cannot compute is refused here, by name, before a chip starts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    rope_theta: float


def read_architecture(directory: Path) -> Architecture:
    """Read `directory`/config.json.

    Raises:
        CheckpointError: no such file, another architecture, or a variant that is not computed.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory}: not a checkpoint directory, no config.json") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    return architecture_from_config(config, str(path))


def architecture_from_config(config: Mapping[str, Any], path: str) -> Architecture:
    """Translate a parsed config.json; `path` names it in errors."""
    names = config.get("architectures") or ["none"]
    if names[0] != SUPPORTED:
        raise CheckpointError(f"{path}: architectures={names[0]}: only {SUPPORTED} is computed")
    _refuse_variants(config, path)
    rope = config.get("rope_parameters") or {}
    experts = config.get("num_experts", config.get("num_local_experts"))
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        return Architecture(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config.get("head_dim") or hidden // heads),
            experts=int(experts if experts is not None else config["num_experts"]),
            experts_per_token=int(config["num_experts_per_tok"]),
            expert_intermediate=int(config["moe_intermediate_size"]),
            normalise_expert_weights=bool(config.get("norm_topk_prob", False)),
            vocab=int(config["vocab_size"]),
            max_context_tokens=int(config["max_position_embeddings"]),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        )
    except KeyError as error:
        raise CheckpointError(f"{path}: key {error.args[0]} is missing") from error


def _refuse_variants(config: Mapping[str, Any], path: str) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    variants = {
        "attention_bias": (bool(config.get("attention_bias")), "must be false"),
        "use_sliding_window": (bool(config.get("use_sliding_window")), "must be false"),
        "mlp_only_layers": (bool(config.get("mlp_only_layers")), "must be empty (all layers MoE)"),
        "decoder_sparse_step": (config.get("decoder_sparse_step", 1) != 1, "must be 1"),
        "hidden_act": (config.get("hidden_act", "silu") != "silu", "must be silu"),
        "rope_type": (rope.get("rope_type", "default") != "default", "must be default"),
        "quantization_config": (bool(config.get("quantization_config")), "must be absent"),
    }
    for key, (found, wanted) in variants.items():
        if found:
            value = config.get(key, rope.get(key))
            raise CheckpointError(f"{path}: {key}={value}: {wanted} to be computed here")
