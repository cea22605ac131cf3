"""Qwen3-235B-A22B: the dimensions of its public config.json, as catalog data."""

from typing import Final

from emulator.specs.model import ModelSpec

QWEN3_235B_A22B: Final = ModelSpec(
    name="qwen3-235b-a22b",
    layers=94,
    hidden=4_096,
    heads=64,
    kv_heads=4,
    head_dim=128,
    experts=128,
    experts_per_token=8,
    expert_intermediate=1_536,
    vocab=151_936,
    max_context_tokens=40_960,
    tied_embeddings=False,
    query_key_norms=True,
    source="Hugging Face, Qwen/Qwen3-235B-A22B, config.json (BF16 checkpoint)",
)
