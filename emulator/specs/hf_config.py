"""Reads a Hugging Face config.json of the Qwen3-MoE architecture, as in local checkpoints."""

from collections.abc import Mapping
from typing import Any

from emulator.errors import ConfigError

_BYTES_OF_DTYPE = {"bfloat16": 2, "float16": 2, "float32": 4}
_KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "num_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_intermediate",
    "vocab_size": "vocab",
    "max_position_embeddings": "max_context_tokens",
}


def qwen3_moe_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelSpec` that the config sets, without name and source.

    A missing head_dim is hidden / heads, a missing dtype BF16, as the architecture's defaults.
    `norm_topk_prob` does not change the work. Raises ConfigError for another architecture, a
    missing or wrong key, or unsupported variants: layers without experts, attention with bias or a
    sliding window.
    """
    if "num_experts" not in config and "num_local_experts" in config:
        # The same number, as newer versions of transformers write it.
        config = {**config, "num_experts": config["num_local_experts"]}
    _check_architecture(config)
    dims = {ours: _whole_number(config, theirs) for theirs, ours in _KEYS.items()}
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if dtype not in _BYTES_OF_DTYPE:
        raise ConfigError("dtype", dtype, "bfloat16, float16 or float32")
    if config.get("head_dim") is None:
        head_dim = dims["hidden"] // max(1, dims["heads"])
    else:
        head_dim = _whole_number(config, "head_dim")
    return {
        **dims,
        "head_dim": head_dim,
        "query_key_norms": True,
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "weight_bytes_per_param": _BYTES_OF_DTYPE[dtype],
        "kv_bytes_per_element": _BYTES_OF_DTYPE[dtype],
    }


def _check_architecture(config: Mapping[str, Any]) -> None:
    wanted: dict[str, tuple[object, ...]] = {
        "model_type": ("qwen3_moe",),
        "decoder_sparse_step": (None, 1),
        "mlp_only_layers": (None, []),
        "attention_bias": (None, False),
        "use_sliding_window": (None, False),
    }
    for key, accepted in wanted.items():
        value = config.get(key)
        if value not in accepted:
            raise ConfigError(key, value, str(accepted[-1]))


def _whole_number(config: Mapping[str, Any], key: str) -> int:
    """The whole number under `key`; raises ConfigError when it is missing or of another type."""
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ConfigError(key, "missing" if value is None else value, "a whole number above 0")
    return value
