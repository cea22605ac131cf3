"""Fresh weights of the Qwen3-MoE architecture, drawn from a seed.

Scales are those of small GPT-like models: embeddings 0.02 (Radford et al. 2018; `initializer_range`
where config.json has it); matrices 1 / sqrt(inputs), which keeps their inputs' size; outputs to the
residual stream also divided by sqrt(2 * layers) (Radford et al. 2019), so that its size does not
grow with depth; norms 1. Small routers choose experts evenly at first.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import CheckpointError

F32 = NDArray[np.float32]

_EMBEDDING_STD = 0.02
_ROUTER_STD = 0.02


def fresh_tensors(directory: Path, *, seed: int) -> dict[str, F32]:
    """All tensors by their Hugging Face names, shaped by `directory`/config.json. Raises
    CheckpointError for an unreadable file, or without a size.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        drawn = dict(_deviations(config))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read for fresh weights ({error!r})") from error
    return {name: _draw(name, shape, std, seed) for name, (shape, std) in drawn.items()}


def _deviations(config: dict[str, Any]) -> Iterator[tuple[str, tuple[tuple[int, ...], float]]]:
    """Names, shapes and standard deviations; 0 is a tensor of ones."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    vocab, wide = config["vocab_size"], config["moe_intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    experts = config.get("num_experts") or config["num_local_experts"]
    embedding_std = config.get("initializer_range", _EMBEDDING_STD)
    to_stream = (2 * layers) ** -0.5

    def linear(outputs: int, inputs: int, gain: float = 1.0) -> tuple[tuple[int, ...], float]:
        return (outputs, inputs), gain * inputs**-0.5

    yield "model.embed_tokens.weight", ((vocab, hidden), embedding_std)
    yield "model.norm.weight", ((hidden,), 0.0)
    if not config.get("tie_word_embeddings", False):
        yield "lm_head.weight", ((vocab, hidden), embedding_std)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", ((hidden,), 0.0)
        yield f"{prefix}.post_attention_layernorm.weight", ((hidden,), 0.0)
        yield f"{prefix}.self_attn.q_norm.weight", ((head_dim,), 0.0)
        yield f"{prefix}.self_attn.k_norm.weight", ((head_dim,), 0.0)
        yield f"{prefix}.self_attn.q_proj.weight", linear(queries, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", linear(keys, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", linear(keys, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", linear(hidden, queries, to_stream)
        yield f"{prefix}.mlp.gate.weight", ((experts, hidden), _ROUTER_STD)
        for expert in range(experts):
            mlp = f"{prefix}.mlp.experts.{expert}"
            yield f"{mlp}.gate_proj.weight", linear(wide, hidden)
            yield f"{mlp}.up_proj.weight", linear(wide, hidden)
            yield f"{mlp}.down_proj.weight", linear(hidden, wide, to_stream)


def _draw(name: str, shape: tuple[int, ...], std: float, seed: int) -> F32:
    """Depends on the tensor's name and the seed alone."""
    if not std:
        return np.ones(shape, dtype=np.float32)
    chance = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    return chance.standard_normal(shape, dtype=np.float32) * np.float32(std)
