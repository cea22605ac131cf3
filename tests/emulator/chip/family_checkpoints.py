"""Seeded random checkpoints of every model family, made and saved by transformers.

Six shapes a family at least. Every tensor is drawn, norms, biases and sinks too, so that a kernel
that forgets one shows.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PLAIN: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
_DEEPSEEK_YARN = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
_DEEPSEEK: dict[str, Any] = {
    **_PLAIN,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_nextn_predict_layers": 0,
    "rope_parameters": _DEEPSEEK_YARN,
}
_LARGE_EPS = {"rms_norm_eps": 1e-2}
_FULL_AT_END = [*["sliding_attention"] * 3, "full_attention"]
_GPT_OSS: dict[str, Any] = {
    **_PLAIN,
    "intermediate_size": 32,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 20,
    "num_hidden_layers": 4,
    "rope_parameters": {**_YARN, "truncate": False},
}
_MIXTRAL: dict[str, Any] = {
    **_PLAIN,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
_MOE: dict[str, Any] = {
    **_PLAIN,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-plain": ("Llama", _PLAIN),
    "llama-scaled-rope": ("Llama", {**_PLAIN, "rope_parameters": _LLAMA3}),
    "llama-tied": ("Llama", {**_PLAIN, "tie_word_embeddings": True, "num_hidden_layers": 2}),
    "llama-wide-heads": ("Llama", {**_PLAIN, "head_dim": 32, "hidden_size": 40}),
    "llama-every-head": ("Llama", {**_PLAIN, "num_key_value_heads": 4}),
    "llama-uneven": (
        "Llama",
        {**_PLAIN, "num_attention_heads": 8, "intermediate_size": 101, "vocab_size": 211},
    ),
    "qwen3-plain": ("Qwen3", {**_PLAIN, "head_dim": 16}),
    "qwen3-wide-heads": ("Qwen3", {**_PLAIN, "head_dim": 32}),
    "qwen3-tied": ("Qwen3", {**_PLAIN, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-yarn": ("Qwen3", {**_PLAIN, "head_dim": 16, "rope_parameters": _YARN}),
    "qwen3-every-head": ("Qwen3", {**_PLAIN, "head_dim": 24, "num_key_value_heads": 4}),
    "qwen3-uneven": ("Qwen3", {**_PLAIN, "head_dim": 16, "intermediate_size": 77}),
    "qwen3-moe-first-dense": ("Qwen3Moe", {**_MOE, "mlp_only_layers": [0]}),
    "qwen3-moe-between": ("Qwen3Moe", {**_MOE, "mlp_only_layers": [1]}),
    "qwen3-moe-every-second": (
        "Qwen3Moe",
        {**_MOE, "decoder_sparse_step": 2, "num_hidden_layers": 4},
    ),
    "qwen3-moe-last-dense": ("Qwen3Moe", {**_MOE, "mlp_only_layers": [2], "norm_topk_prob": False}),
    "qwen3-moe-both": (
        "Qwen3Moe",
        {**_MOE, "mlp_only_layers": [1], "decoder_sparse_step": 2, "num_hidden_layers": 4},
    ),
    "qwen3-moe-one-of-many": ("Qwen3Moe", {**_MOE, "num_experts": 16, "num_experts_per_tok": 1}),
    "mixtral-plain": ("Mixtral", _MIXTRAL),
    "mixtral-four-of-eight": ("Mixtral", {**_MIXTRAL, "num_experts_per_tok": 4}),
    "mixtral-every-head": ("Mixtral", {**_MIXTRAL, "num_key_value_heads": 4}),
    "mixtral-wide": ("Mixtral", {**_MIXTRAL, "intermediate_size": 160, "hidden_size": 48}),
    "mixtral-tied": ("Mixtral", {**_MIXTRAL, "tie_word_embeddings": True}),
    "mixtral-long-rope": (
        "Mixtral",
        {**_MIXTRAL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "gpt-oss-plain": ("GptOss", _GPT_OSS),
    "gpt-oss-short-window": ("GptOss", {**_GPT_OSS, "sliding_window": 3}),
    "gpt-oss-long-window": ("GptOss", {**_GPT_OSS, "sliding_window": 150}),
    "gpt-oss-every-head": ("GptOss", {**_GPT_OSS, "num_key_value_heads": 4}),
    "gpt-oss-four-of-sixteen": (
        "GptOss",
        {**_GPT_OSS, "num_local_experts": 16, "num_experts_per_tok": 4},
    ),
    "gpt-oss-low-limit": ("GptOss", {**_GPT_OSS, "swiglu_limit": 0.5, "head_dim": 32}),
    "deepseek-plain": ("DeepseekV3", _DEEPSEEK),
    "deepseek-one-group": ("DeepseekV3", {**_DEEPSEEK, "n_group": 1, "topk_group": 1}),
    "deepseek-no-dense": ("DeepseekV3", {**_DEEPSEEK, "first_k_dense_replace": 0}),
    "deepseek-two-shared": (
        "DeepseekV3",
        {**_DEEPSEEK, "n_shared_experts": 2, "first_k_dense_replace": 2},
    ),
    "deepseek-plain-rope": (
        "DeepseekV3",
        {**_DEEPSEEK, "rope_parameters": _DEFAULT, "norm_topk_prob": False},
    ),
    "kimi-k2-like": (
        "DeepseekV3",
        {
            **_DEEPSEEK,
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": 24,
            "routed_scaling_factor": 2.827,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "kv_lora_rank": 40,
            "rope_parameters": {**_DEEPSEEK_YARN, "factor": 32.0, "beta_fast": 1.0},
        },
    ),
    "llama-linear-rope": ("Llama", {**_PLAIN, "rope_parameters": _LINEAR, **_LARGE_EPS}),
    "qwen3-large-eps": ("Qwen3", {**_PLAIN, "head_dim": 16, **_LARGE_EPS}),
    "qwen3-moe-large-eps": ("Qwen3Moe", {**_MOE, **_LARGE_EPS}),
    "mixtral-large-eps": ("Mixtral", {**_MIXTRAL, **_LARGE_EPS}),
    "gpt-oss-other-settings": (
        "GptOss",
        {
            **_GPT_OSS,
            "attention_bias": False,
            "swiglu_alpha": 1.0,
            "layer_types": _FULL_AT_END,
            **_LARGE_EPS,
        },
    ),
    "deepseek-two-mscales": (
        "DeepseekV3",
        {
            **_DEEPSEEK,
            "rope_parameters": {**_YARN, "mscale": 0.5, "mscale_all_dim": 0.8},
            **_LARGE_EPS,
        },
    ),
    "deepseek-linear-rope": (
        "DeepseekV3",
        {**_DEEPSEEK, "rope_parameters": {**_LINEAR, "mscale_all_dim": 1.0}},
    ),
}


class FamilyCheckpoints(Mapping[str, Path]):
    """Checkpoint directories under `root` by name, each made on first use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, name: str) -> Path:
        directory = self._root / name
        if not directory.exists():
            make_family_checkpoint(directory, name)
        return directory

    def __iter__(self) -> Iterator[str]:
        return iter(SHAPES)

    def __len__(self) -> int:
        return len(SHAPES)


def make_family_checkpoint(directory: Path, name: str, *, vocab_size: int | None = None) -> None:
    """Save a random model of the shape `name` in `directory`, in several files.

    With a tokenizer's `vocab_size`, where the shape's is not meant.
    """
    import torch  # noqa: PLC0415  takes seconds, and most tests need none of it
    import transformers  # noqa: PLC0415

    family, keys = SHAPES[name]
    keys = keys | {"vocab_size": vocab_size or keys["vocab_size"]}
    config = getattr(transformers, f"{family}Config")(**keys)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(list(SHAPES).index(name))
    with torch.no_grad():
        for tensor_name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in tensor_name:
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif "inv_freq" not in tensor_name:
                tensor.normal_(0.0, 0.15, generator=generator)
    model.save_pretrained(directory, max_shard_size=100_000)
    path = directory / "config.json"
    config_json = json.loads(path.read_text(encoding="utf-8"))
    assert config_json["architectures"] == [f"{family}ForCausalLM"]
