"""Qwen3's mixtures of experts: the dimensions of their public config.json, as catalog data.

The position limit, 40,960, is 32,768 native tokens and 8,192 of output.
"""

from dataclasses import replace
from typing import Final

from emulator.specs.model import ModelSpec

QWEN3_30B_A3B: Final = ModelSpec(
    name="qwen3-30b-a3b",
    layers=48,
    hidden=2_048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    experts=128,
    experts_per_token=8,
    expert_intermediate=768,
    vocab=151_936,
    max_context_tokens=40_960,
    tied_embeddings=False,
    query_key_norms=True,
    weight_bytes_per_param=2,
    kv_bytes_per_element=2,
    source="Hugging Face, Qwen/Qwen3-30B-A3B, config.json (BF16 checkpoint)",
)

QWEN3_235B_A22B: Final = replace(
    QWEN3_30B_A3B,
    name="qwen3-235b-a22b",
    layers=94,
    hidden=4_096,
    heads=64,
    expert_intermediate=1_536,
    source="Hugging Face, Qwen/Qwen3-235B-A22B, config.json (BF16 checkpoint)",
)
