"""Makes the bundled checkpoint's weights from a seed: `python -m emulator.data.make_small_moe`.

Reads `config.json` and `tokenizer.json`, and writes `model.safetensors` beside them. The same seed
gives the same bytes on any machine: weights are uniform, made from raw generator bits by exact
arithmetic, never by a math library.

**Tokens of the random model.** Hidden dimension 0 is a constant feature: each embedding has the
same positive value there and no layer writes to it. The LM head's rows of *silent* tokens carry a
large negative weight on it, which puts their logits some 30 below the others'. Silent are the
special, markup and byte tokens, and word pieces that would fuse with a neighbour (`token_closure`),
so that sampled text encodes back to the same tokens. A grammar or a bias can still request them,
and training can raise them.
"""

import argparse
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from tokenizers import Tokenizer

from emulator.arrays import Float32s
from emulator.data import SMALL_MOE_DIR
from emulator.data.bfloat16_checkpoint import safetensors_bytes
from emulator.data.small_moe_tokenizer import (
    BYTE_TOKENS,
    MARKUP_TOKENS,
    SPECIAL_TOKENS,
    train_tokenizer,
)
from emulator.data.token_closure import closed_token_ids

SEED = 20260


# Standard deviations by hand, so that random weights behave like a model: logits spread by about
# 2.5, attention that prefers a few positions, and routing decided by differences far above
# rounding. Matrices not named here have 1 / sqrt(inputs), which keeps the size of what they read.
EMBEDDING_STD = 1.0
CONSTANT_FEATURE = 1.0
QUERY_KEY_NORM = 1.7
ROUTER_GAIN = 2.0
EXPERT_GATE_GAIN = 2.0
LM_HEAD_STD = 0.24
SILENT_WEIGHT = -64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers of `config.json` that shape the tensors, under their names there."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    moe_intermediate_size: int
    vocab_size: int

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the sizes from `directory`/config.json; raises KeyError when one is missing."""
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return cls(**{name: config[name] for name in cls.__slots__})


def silent_token_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids, ascending, of the tokens that the random model must not say."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    never = {vocabulary[token] for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS, *BYTE_TOKENS)}
    candidates = sorted(set(vocabulary.values()) - never)
    spoken = set(closed_token_ids(tokenizer, candidates))
    return sorted(set(vocabulary.values()) - spoken)


def make_tensors(sizes: Sizes, *, silent: Sequence[int], seed: int) -> dict[str, Float32s]:
    """Return all tensors of the checkpoint, float32, by their Hugging Face names."""
    hidden, vocab = sizes.hidden_size, sizes.vocab_size
    embedding = _uniform("model.embed_tokens.weight", (vocab, hidden), EMBEDDING_STD, seed)
    embedding[:, 0] = CONSTANT_FEATURE
    lm_head = _uniform("lm_head.weight", (vocab, hidden), LM_HEAD_STD, seed)
    lm_head[:, 0] = 0.0
    lm_head[list(silent), 0] = SILENT_WEIGHT
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(hidden, dtype=np.float32),
        "lm_head.weight": lm_head,
    }
    for layer in range(sizes.num_hidden_layers):
        tensors |= _attention_tensors(sizes, prefix=f"model.layers.{layer}", seed=seed)
        tensors |= _expert_tensors(sizes, prefix=f"model.layers.{layer}", seed=seed)
    return tensors


def _attention_tensors(sizes: Sizes, *, prefix: str, seed: int) -> dict[str, Float32s]:
    hidden, head_dim = sizes.hidden_size, sizes.head_dim
    query, key_value = sizes.num_attention_heads * head_dim, sizes.num_key_value_heads * head_dim
    attention = f"{prefix}.self_attn"
    tensors = {
        f"{attention}.{name}_proj.weight": _linear(
            f"{attention}.{name}_proj.weight", outputs=outputs, inputs=inputs, seed=seed
        )
        for name, outputs, inputs in (
            ("q", query, hidden),
            ("k", key_value, hidden),
            ("v", key_value, hidden),
            ("o", hidden, query),
        )
    }
    tensors[f"{attention}.o_proj.weight"][0] = 0.0  # the constant feature stays constant
    for name in ("q_norm", "k_norm"):
        tensors[f"{attention}.{name}.weight"] = np.full(head_dim, QUERY_KEY_NORM, dtype=np.float32)
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}.{name}.weight"] = np.ones(hidden, dtype=np.float32)
    return tensors


def _expert_tensors(sizes: Sizes, *, prefix: str, seed: int) -> dict[str, Float32s]:
    hidden, inner = sizes.hidden_size, sizes.moe_intermediate_size
    router_name = f"{prefix}.mlp.gate.weight"
    router = _linear(
        router_name, outputs=sizes.num_experts, inputs=hidden, gain=ROUTER_GAIN, seed=seed
    )
    router[:, 0] = 0.0  # a constant would favour the same experts for every token
    tensors = {router_name: router}
    for expert in range(sizes.num_experts):
        for name, outputs, inputs, gain in (
            ("gate_proj", inner, hidden, EXPERT_GATE_GAIN),
            ("up_proj", inner, hidden, 1.0),
            ("down_proj", hidden, inner, 1.0),
        ):
            full_name = f"{prefix}.mlp.experts.{expert}.{name}.weight"
            tensors[full_name] = _linear(
                full_name, outputs=outputs, inputs=inputs, gain=gain, seed=seed
            )
        tensors[full_name][0] = 0.0  # down_proj: the constant feature stays constant
    return tensors


def _linear(name: str, *, outputs: int, inputs: int, gain: float = 1.0, seed: int) -> Float32s:
    return _uniform(name, (outputs, inputs), gain / inputs**0.5, seed)


def _uniform(name: str, shape: tuple[int, ...], std: float, seed: int) -> Float32s:
    """Uniform noise of this deviation, by the tensor's name and the seed.

    From raw bits, which numpy keeps the same between versions, unlike its distributions.
    """
    bits = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(int(np.prod(shape)))
    unit = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0  # in [-1, 1), exactly
    noise: Float32s = (unit * (std * 3.0**0.5)).astype(np.float32).reshape(shape)
    return noise


def make_weights(directory: Path, *, seed: int = SEED) -> bytes:
    """Return the bytes of model.safetensors for the config and tokenizer in `directory`."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    silent = silent_token_ids(tokenizer)
    return safetensors_bytes(make_tensors(Sizes.read(directory), silent=silent, seed=seed))


def main() -> None:
    """Write model.safetensors, and on request a newly trained tokenizer.json first."""
    parser = argparse.ArgumentParser(description="make the bundled small MoE checkpoint")
    parser.add_argument("--output", type=Path, default=SMALL_MOE_DIR, metavar="DIR")
    parser.add_argument(
        "--train-tokenizer",
        type=Path,
        metavar="DIR",
        help="learn the merges anew from the *.py files in DIR; otherwise tokenizer.json is kept",
    )
    arguments = parser.parse_args()
    directory: Path = arguments.output
    if arguments.train_tokenizer is not None:
        vocab_size = Sizes.read(directory).vocab_size
        tokenizer = train_tokenizer(sources=arguments.train_tokenizer, vocab_size=vocab_size)
        tokenizer.save(str(directory / "tokenizer.json"))
    path = directory / "model.safetensors"
    path.write_bytes(make_weights(directory))
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
