"""Seeded random Qwen3-MoE checkpoints, made and saved by transformers, one per shape.

Every tensor is drawn, norms too, so that a kernel that forgets one shows. The scales make texts
vary and decide routing by far more than rounding.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emulator.data import SMALL_MOE_DIR

_PLAIN: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
}

# `query_key_norm` is not a key of config.json: the largest weight of the query and key norms.
SHAPES: dict[str, dict[str, Any]] = {
    "small_moe": json.loads((SMALL_MOE_DIR / "config.json").read_text(encoding="utf-8")),
    "more_experts": {**_PLAIN, "num_experts": 192, "num_experts_per_tok": 8},
    "as_many_kv_heads": {**_PLAIN, "num_key_value_heads": 4, "head_dim": 24},
    "tied": {**_PLAIN, "tie_word_embeddings": True, "num_hidden_layers": 2},
    "wide_heads": {**_PLAIN, "hidden_size": 40, "head_dim": 32, "vocab_size": 201},
    "one_kv_head": {
        **_PLAIN,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "rope_theta": 500.0,
    },
    "sharp_attention": {**_PLAIN, "num_hidden_layers": 2, "query_key_norm": 8.0},
    # The config says plain RoPE under `rope_parameters` too, which counts for nothing beside it.
    "yarn": {
        **_PLAIN,
        "rope_scaling": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
        },
    },
}

_DROPPED = ("architectures", "model_type", "torch_dtype", "rope_scaling", "bos_token_id")


class RandomCheckpoints(Mapping[str, Path]):
    """Checkpoint directories under `root` by name, each made on first use."""

    def __init__(self, root: Path, shapes: Mapping[str, Mapping[str, Any]]) -> None:
        self._root = root
        self._shapes = shapes

    def __getitem__(self, name: str) -> Path:
        directory = self._root / name
        if not directory.exists():
            seed = list(self._shapes).index(name)
            make_checkpoint(directory, self._shapes[name], seed=seed)
        return directory

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def make_checkpoint(
    directory: Path, shape: Mapping[str, Any], *, seed: int, shard_bytes: int = 10**9
) -> None:
    """Save a random model of `shape` in `directory`, in files of at most `shard_bytes`."""
    import torch  # noqa: PLC0415  takes seconds, and most tests need none of it
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: PLC0415

    keys = {key: value for key, value in shape.items() if key not in _DROPPED}
    largest_norm = keys.pop("query_key_norm", 2.0)
    plain = {"rope_type": "default", "rope_theta": keys.pop("rope_theta")}
    rope = dict(shape.get("rope_scaling") or plain)
    # No token ends a text: every one has the length that was asked for.
    config = Qwen3MoeConfig(**keys | {"eos_token_id": None, "rope_parameters": rope})
    model = Qwen3MoeForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.uniform_(0.5, largest_norm, generator=generator)
            elif name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0.0, 0.15, generator=generator)
    model.save_pretrained(directory, max_shard_size=shard_bytes)
    if shape.get("rope_scaling"):
        path = directory / "config.json"
        both = {"rope_parameters": plain, "rope_scaling": shape["rope_scaling"]}
        path.write_text(json.dumps(json.loads(path.read_text()) | both))
