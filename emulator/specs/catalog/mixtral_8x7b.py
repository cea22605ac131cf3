"""Mixtral-8x7B: the dimensions of its public config.json, as catalog data."""

from typing import Final

from emulator.specs.model import ModelSpec

MIXTRAL_8X7B: Final = ModelSpec(
    name="mixtral-8x7b",
    layers=32,
    hidden=4_096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    experts=8,
    experts_per_token=2,
    expert_intermediate=14_336,
    vocab=32_000,
    max_context_tokens=32_768,
    tied_embeddings=False,
    query_key_norms=False,
    source="Hugging Face, mistralai/Mixtral-8x7B-v0.1, config.json (BF16 checkpoint)",
)
